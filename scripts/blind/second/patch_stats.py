"""FIELD
source: pytorch/pytorch#89693 and pytorch/pytorch#17199 (a forked child enters an OpenMP region after the parent has used one)
mechanism: the parent trains with two intra-op threads, then forks a pool; the first large operation in the child waits for OpenMP threads that do not exist after the fork
needs: cpu
ranks: 1
onset: printed
state: hung
cause: stuck_worker, blocked_child, deadlocked_locks, unknown
blame: whitening_of (patch_stats.py)
twin: none
"""
import multiprocessing as mp
import time

import torch
import torch.nn as nn

torch.set_num_threads(2)


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 5), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def whitening_of(seed):
    g = torch.Generator().manual_seed(seed)
    patches = torch.rand(20000, 75, generator=g, dtype=torch.float64).float()
    centred = patches - patches.mean(0)
    return (centred.T @ centred / len(patches)).numpy()


def refresh_statistics(n):
    with mp.get_context("fork").Pool(2) as pool:
        covs = pool.map(whitening_of, range(n))
    return sum(covs) / n


def main():
    torch.manual_seed(0)
    net = PatchNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    last = time.time()
    for epoch in range(400):
        for step in range(10):
            x, y = torch.rand(32, 3, 40, 40), torch.randint(0, 10, (32,))
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
        if time.time() - last > 9:
            print("ONSET", flush=True)
            cov = refresh_statistics(6)
            print("trace", float(cov.trace()), flush=True)
            last = time.time()


if __name__ == "__main__":
    main()
