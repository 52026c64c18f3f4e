"""FIELD
source: own (an event loop awaits an external converter, and beats meanwhile)
mechanism: an asyncio trainer awaits a child process that converts the next part for two minutes; a coroutine writes a line every two seconds
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: none
"""

import asyncio
import signal
import sys

import torch

signal.alarm(300)
torch.set_num_threads(1)
CONVERT = "import signal, time\nsignal.alarm(200)\nend = time.time() + 120\nx = 1\nwhile time.time() < end:\n    x = x * 48271 % 2147483647\n"
net = torch.nn.Linear(128, 128)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


async def beat():
    while True:
        await asyncio.sleep(2)
        print("alive", flush=True)


async def part(steps):
    for _ in range(steps):
        x = torch.randn(64, 128)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        await asyncio.sleep(0)
    return loss.item()


async def main():
    keeper = asyncio.create_task(beat())
    for number in range(10**6):
        print("part", number, await part(4000), flush=True)
        if number == 0:
            print("ONSET", flush=True)
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CONVERT)
        await child.wait()
    await keeper


asyncio.run(main())
