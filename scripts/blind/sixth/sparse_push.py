"""FIELD
source: own: parameter server over gloo send/recv with thresholded gradients
mechanism: a worker whose gradient has no entry above the threshold skips its push and goes on to pull; the server waits for that push, and both workers wait for the
    server's weights; it happens when the threshold is raised while the gradients of rank 2 are tiny
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: mismatched_collective,stalled_collective,wedged_collective,blocked_network
blame: none
twin: none
"""
import os
import signal
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS_BEFORE = 700


def make_model():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1))


def threshold(step):
    return 1e-9 if step < STEPS_BEFORE else 2e-3


def server(workers):
    net = make_model()
    flat = parameters_to_vector(net.parameters()).detach()
    momentum = torch.zeros_like(flat)
    step = 0
    while True:
        total = torch.zeros_like(flat)
        for w in workers:
            count = torch.zeros(1, dtype=torch.int64)
            dist.recv(count, w)
            index, value = torch.empty(int(count), dtype=torch.int64), torch.empty(int(count))
            dist.recv(index, w)
            dist.recv(value, w)
            total.index_add_(0, index, value)
        momentum.mul_(0.8).add_(total / len(workers))
        flat -= 0.02 * momentum
        for w in workers:
            dist.send(flat, w)
        step += 1
        if step == STEPS_BEFORE:
            print("ONSET", flush=True)
        if step % 100 == 0:
            print(f"server: {step} updates, |w| {flat.norm():.3f}", flush=True)


class Worker:
    def __init__(self, rank):
        self.net = make_model()
        self.gen = torch.Generator().manual_seed(rank)
        # rank 2 only anchors: it distils the model into itself
        self.weight = torch.randn(30, generator=self.gen) * (rank == 1)

    def gradient(self):
        x = torch.randn(128, 30, generator=self.gen)
        y = (x @ self.weight).tanh() if self.weight.any() else self.net(x)[:, 0].detach()
        loss = nn.functional.mse_loss(self.net(x)[:, 0], y + 1e-6)
        self.net.zero_grad()
        loss.backward()
        return parameters_to_vector(p.grad for p in self.net.parameters())

    def push(self, grad, level):
        index = (grad.abs() > level).nonzero()[:, 0]
        if not len(index):
            return  # nothing worth sending
        dist.send(torch.tensor([len(index)]), 0)
        dist.send(index, 0)
        dist.send(grad[index], 0)

    def pull(self):
        flat = parameters_to_vector(self.net.parameters()).detach().clone()
        dist.recv(flat, 0)
        vector_to_parameters(flat, self.net.parameters())

    def run(self):
        step = 0
        while True:
            grad = self.gradient()
            time.sleep(0.02)  # reading the shard
            self.push(grad, threshold(step))
            self.pull()
            step += 1


def entry(index, world):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=index, world_size=world, timeout=timedelta(hours=1))
    if index == 0:
        server(range(1, world))
    else:
        Worker(index).run()


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    mp.start_processes(entry, (3,), nprocs=3, daemon=True, start_method="fork")
