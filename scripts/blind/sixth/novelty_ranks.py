"""FIELD
source: own: evolution of behaviours with a novelty bonus, where one rank is the explorer
mechanism: rank 2 keeps an archive of all behaviours and sorts the distances to all of them for each of its samples; the archive is seeded from an earlier run at the onset and grows,
    so that rank 2 comes to each all_reduce later and later, and ranks 0 and 1 wait for it
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: straggling_rank,regressed
blame: rank 2
twin: none
"""
import argparse
import os
import signal
import socket
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Archive:
    def __init__(self, k=10):
        self.rows, self.k = np.zeros((0, 8), np.float32), k

    def extend(self, rows):
        self.rows = np.vstack([self.rows, rows])

    def novelty(self, row):
        if not len(self.rows):
            return 1.0
        distances = np.abs(self.rows - row).sum(1).tolist()
        return sum(sorted(distances)[: self.k]) / self.k


class Walker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8))

    def forward(self, x):
        return self.body(x)


def average(parameters):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in parameters:
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def work(rank, args):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(args.ranks)
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    net = Walker()
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    archive = Archive() if rank == args.explorer else None
    begin = time.monotonic()
    seeded = torch.zeros(1)
    step = 0
    while True:
        x = torch.randn(32, 24)
        time.sleep(0.025)  # the simulator's frame
        behaviour = net(x)
        bonus = torch.ones(len(x))
        if archive is not None:
            bonus = torch.tensor([archive.novelty(b) for b in behaviour.detach().numpy()])
            if seeded:
                archive.extend(behaviour.detach().numpy())
        loss = -(bonus[:, None] * behaviour).tanh().mean() + behaviour.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        average(list(net.parameters()))
        opt.step()
        step += 1
        if archive is not None and not seeded and time.monotonic() - begin > args.warmup:
            seeded.fill_(1)
            archive.extend(np.random.default_rng(0).normal(size=(args.seed_rows, 8)).astype(np.float32))
            print(f"archive seeded with {args.seed_rows} behaviours", flush=True)
            print("ONSET", flush=True)
        if rank == 0 and step % 100 == 0:
            print(f"generation {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--explorer", type=int, default=2)
    parser.add_argument("--warmup", type=float, default=16)
    parser.add_argument("--seed-rows", type=int, default=24_000)
    with socket.create_server(("127.0.0.1", 0)) as s:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(s.getsockname()[1])
    options = parser.parse_args()
    mp.start_processes(work, (options,), nprocs=options.ranks, daemon=True, start_method="fork")
