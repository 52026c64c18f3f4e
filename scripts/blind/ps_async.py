"""FIELD
source: own (a small asynchronous parameter server over gloo)
mechanism: rank 0 only serves: it waits in recv() for a gradient from any worker, applies it and sends the weights back; two ranks train
needs: cpu
ranks: 3
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10))


def serve(model, workers):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    size = sum(p.numel() for p in model.parameters())
    message, active, updates = torch.zeros(size + 1), workers, 0
    while active:
        sender = dist.recv(message)
        if message[-1] < 0:
            active -= 1
            continue
        offset = 0
        for p in model.parameters():
            p.grad = message[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        opt.step()
        updates += 1
        dist.send(parameters_to_vector(model.parameters()).detach(), dst=sender)
        if updates % 50 == 0:
            print(f"update {updates} loss {message[-1].item():.4f}", flush=True)


def work(model, seconds):
    gen = torch.Generator().manual_seed(dist.get_rank())
    began, announced = time.time(), dist.get_rank() != 1
    weights = parameters_to_vector(model.parameters()).detach().clone()
    while time.time() - began < seconds:
        model.zero_grad()
        total = 0.0
        for _ in range(8):
            x = torch.randn(256, 256, generator=gen)
            loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1)) / 8
            loss.backward()
            total += loss.item()
        grads = parameters_to_vector([p.grad for p in model.parameters()])
        dist.send(torch.cat([grads, torch.tensor([total])]), dst=0)
        dist.recv(weights, src=0)
        vector_to_parameters(weights, model.parameters())
        if not announced and time.time() - began > 10:
            print("ONSET", flush=True)
            announced = True
    dist.send(torch.cat([torch.zeros_like(weights), torch.tensor([-1.0])]), dst=0)


def main():
    dist.init_process_group("gloo")
    model = build()
    if dist.get_rank() == 0:
        serve(model, dist.get_world_size() - 1)
    else:
        work(model, 450)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
