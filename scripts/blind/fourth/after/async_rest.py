"""FIELD
source: own (a trainer in an event loop that answers a status socket and trains in short rounds)
mechanism: an asyncio trainer trains for four seconds, awaits a timer of twenty-five seconds, and so on; a coroutine updates a status every second
needs: none
ranks: 1
onset: printed
state: healthy, busy, slow
cause: any
blame: none
twin: none
"""

import asyncio
import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
status = {}


async def round_of(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        x = torch.randn(128, 64)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        status["loss"] = loss.item()
        await asyncio.sleep(0)


async def beat():
    while True:
        status["time"] = time.time()
        await asyncio.sleep(1)


async def main():
    keeper = asyncio.create_task(beat())
    for number in range(10**6):
        await round_of(4)
        print("round", number, status["loss"], flush=True)
        if number == 1:
            print("ONSET", flush=True)
        await asyncio.sleep(25)
    await keeper


asyncio.run(main())
