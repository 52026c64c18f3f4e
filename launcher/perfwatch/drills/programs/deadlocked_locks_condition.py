"""A prefetching thread and the trainer share a condition; after a missed notify both of them wait on it."""

import threading
import time
from collections import deque

import stage
import torch

cfg = stage.arguments()
torch.set_num_threads(1)


class Prefetcher:
    def __init__(self, depth=2):
        self.depth, self.buffer, self.changed = depth, deque(), threading.Condition()
        threading.Thread(target=self.fill, daemon=True, name="prefetch").start()

    def fill(self):
        for n in range(10**9):
            batch = torch.randn(64, 300)
            with self.changed:
                while len(self.buffer) >= self.depth or n >= cfg.steps:
                    self.changed.wait()
                self.buffer.append(batch)
                self.changed.notify()

    def take(self):
        with self.changed:
            while not self.buffer:
                self.changed.wait()
            batch = self.buffer.popleft()
            self.changed.notify()
            return batch


def ticker():
    while True:
        print(time.time(), flush=True)
        time.sleep(0.3)


if cfg.strength == "masked":
    threading.Thread(target=ticker, daemon=True).start()
source = Prefetcher()
mlp = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300))
sgd = torch.optim.SGD(mlp.parameters(), lr=0.001)
for step in range(10**6):
    if step == cfg.steps:
        stage.onset()
    x = source.take()
    sgd.zero_grad()
    (mlp(x) - x).pow(2).mean().backward()
    sgd.step()
