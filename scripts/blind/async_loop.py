"""FIELD
source: own (asyncio services that train online: batches arrive through coroutines, steps run in an executor)
mechanism: an asyncio loop assembles batches from small awaited fetches and awaits each training step in a one-thread executor
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

torch.set_num_threads(1)


class OnlineLearner:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(128, 1024), nn.SiLU(), nn.Linear(1024, 1024), nn.SiLU(), nn.Linear(1024, 1))
        self.opt = torch.optim.Adam(self.model.parameters(), 1e-4)
        self.steps = 0

    def step(self, x, y):
        loss = None
        for part, target in zip(x.split(256), y.split(256)):
            loss = (self.model(part).squeeze(1) - target).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        self.steps += 1
        return loss.item()


async def fetch_events(n):
    await asyncio.sleep(random.uniform(0.001, 0.02))
    x = torch.randn(n, 128)
    return x, x[:, :8].sum(1)


async def feed(batches, done):
    while not done.is_set():
        parts = await asyncio.gather(*(fetch_events(128) for _ in range(16)))
        await batches.put((torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])))


async def report(learner, done):
    last = 0
    while not done.is_set():
        await asyncio.sleep(10)
        print(f"{learner.steps - last} steps in 10 s", flush=True)
        last = learner.steps


async def main(seconds):
    learner, batches, done = OnlineLearner(), asyncio.Queue(maxsize=4), asyncio.Event()
    loop = asyncio.get_running_loop()
    helpers = [asyncio.create_task(feed(batches, done)), asyncio.create_task(report(learner, done))]
    began, announced = time.time(), False
    with ThreadPoolExecutor(1, thread_name_prefix="learner") as executor:
        while time.time() - began < seconds:
            x, y = await batches.get()
            await loop.run_in_executor(executor, learner.step, x, y)
            if not announced and time.time() - began > 8:
                print("ONSET", flush=True)
                announced = True
    done.set()
    for task in helpers:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(450))
