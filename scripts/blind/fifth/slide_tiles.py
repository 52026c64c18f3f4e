"""FIELD
source: xorq-labs/xorq#2243 (a shared ThreadPoolExecutor deadlocks when tasks submit to their own pool and wait), here in a loader of one DDP rank
mechanism: each rank prefetches slides with a pool of two threads; a slide that is not in the cache submits its tiles to the same pool and waits for them; the second half of rank 1's slides is not cached, so both threads wait for tiles that no thread can cut, and rank 0 waits in the gradient exchange
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: deadlocked_locks, unknown, stalled_collective
blame: rank 1
twin: none
"""
import os
import signal
import socket
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SlideLoader:
    def __init__(self, rank, threads=2, ahead=4, uncached_after=None):
        self.rank, self.ahead, self.uncached_after = rank, ahead, uncached_after
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="slides")
        self.cache, self.begun, self.told = {}, time.monotonic(), False

    def cut_tile(self, slide, at):
        time.sleep(0.015)  # a seek in a file of some gigabytes
        rng = np.random.default_rng([slide, at])
        tile = rng.normal(slide % 4, 1.0, size=(3, 32, 32)).astype(np.float32)
        return (tile - tile.mean()) / tile.std()

    def load_slide(self, slide, cached):
        if cached:
            key = slide % 12
            if key not in self.cache:
                self.cache[key] = np.stack([self.cut_tile(key, at) for at in range(8)])
            return torch.from_numpy(self.cache[key]), slide % 4
        parts = [self.pool.submit(self.cut_tile, slide, at) for at in range(8)]
        return torch.from_numpy(np.stack([part.result() for part in parts])), slide % 4

    def submit(self, slide):
        cached = self.uncached_after is None or time.monotonic() - self.begun < self.uncached_after
        if not cached and not self.told:
            self.told = True
            print("ONSET", flush=True)
        return self.pool.submit(self.load_slide, slide, cached)

    def __iter__(self):
        slide, waiting = self.rank, deque()
        while True:
            while len(waiting) < self.ahead:
                waiting.append(self.submit(slide))
                slide += 2
            yield waiting.popleft().result()


def train(rank, world, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = SlideLoader(rank, uncached_after=8 if rank == 1 else None)
    for step, (tiles, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(tiles), torch.full((len(tiles),), label))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(train, args=(2, free), nprocs=2, daemon=True)
