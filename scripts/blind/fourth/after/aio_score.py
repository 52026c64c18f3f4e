"""FIELD
source: own (an event loop awaits a score that an executor's thread computes)
mechanism: an asyncio trainer awaits run_in_executor, whose thread computes distances in numpy for two minutes; a coroutine ticks every second
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host, evaluating
blame: none
twin: none
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
import asyncio
import signal
import time

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def score(seconds):
    rng, best, end = np.random.default_rng(0), np.inf, time.monotonic() + seconds
    while time.monotonic() < end:
        a, b = rng.random((1500, 64)), rng.random((1500, 64))
        best = min(best, float(np.linalg.svd(a @ b.T, compute_uv=False)[0]))
    return best


async def tick():
    while True:
        await asyncio.sleep(1)


async def main():
    keeper = asyncio.create_task(tick())
    for number in range(10**6):
        for _ in range(3000):
            x = torch.randn(64, 128)
            loss = (net(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            await asyncio.sleep(0)
        if number == 0:
            print("ONSET", flush=True)
        print(number, await asyncio.get_running_loop().run_in_executor(None, score, 120), flush=True)
    await keeper


asyncio.run(main())
