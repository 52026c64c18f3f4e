"""FIELD
source: own (two-stage pipeline parallelism with six micro-batches per step)
mechanism: each stage waits for activations or gradients of the other for a part of every step, as a pipeline does
needs: cpu
ranks: 2
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

torch.set_num_threads(1)
MICRO, ROWS, WIDTH = 6, 128, 512


def stage(first):
    body = [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(3)]
    return nn.Sequential(*body) if first else nn.Sequential(*body, nn.Linear(WIDTH, 20))


def first_stage(model, opt, gen):
    sent, requests = [], []
    for _ in range(MICRO):
        x = torch.randn(ROWS, WIDTH, generator=gen)
        h = model(x)
        sent.append(h)
        requests.append(dist.isend(h.detach().contiguous(), dst=1, tag=1))
    for h in sent:
        grad = torch.empty(ROWS, WIDTH)
        dist.recv(grad, src=1, tag=2)
        h.backward(grad)
    for r in requests:
        r.wait()
    opt.step()
    opt.zero_grad()


def last_stage(model, opt, gen):
    total = 0.0
    for _ in range(MICRO):
        h = torch.empty(ROWS, WIDTH)
        dist.recv(h, src=0, tag=1)
        h.requires_grad_()
        y = torch.randint(0, 20, (ROWS,), generator=gen)
        loss = nn.functional.cross_entropy(model(h), y) / MICRO
        loss.backward()
        dist.send(h.grad, dst=0, tag=2)
        total += loss.item()
    opt.step()
    opt.zero_grad()
    return total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = stage(rank == 0)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    gen = torch.Generator().manual_seed(rank)
    began, step, announced = time.time(), 0, False
    while True:
        loss = (first_stage if rank == 0 else last_stage)(model, opt, gen)
        step += 1
        if rank == 1 and step % 25 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if rank == 1 and not announced and time.time() - began > 10:
            print("ONSET", flush=True)
            announced = True
        if step % 10 == 0:
            stop = torch.tensor([float(time.time() - began > 440)])
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
