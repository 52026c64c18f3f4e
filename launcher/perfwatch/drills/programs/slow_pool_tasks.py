"""Look-alike of a dead pool worker: long tasks, and by design a fresh worker for each (``maxtasksperchild=1``)."""

import multiprocessing
import random
import time

import stage
import torch


def simulate(seed):
    generator, total = random.Random(seed), 0.0
    until = time.monotonic() + (8 if seed > 40 else 0.01)
    while time.monotonic() < until:
        total += sorted(generator.random() for _ in range(2000))[1000]
        time.sleep(0.02)
    return total


def learn(steps):
    value = torch.nn.Linear(1, 300)
    opt = torch.optim.Adam(value.parameters())
    with multiprocessing.Pool(2, maxtasksperchild=1) as pool:
        for n in range(10**6):
            if n == steps:
                stage.onset()
            seeds = [1, 2] if n < steps else [41, 42, 43, 44]
            returns = torch.tensor(pool.map(simulate, seeds, chunksize=1))
            opt.zero_grad()
            value(returns[:, None]).pow(2).mean().backward()
            opt.step()


torch.set_num_threads(1)
learn(stage.arguments().steps)
