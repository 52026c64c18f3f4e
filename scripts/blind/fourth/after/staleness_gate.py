"""FIELD
source: after huggingface/trl#5293 (staleness control between a generator and a trainer in one event loop)
mechanism: the generator waits for the trainer to publish a new version before it makes more, the trainer waits for more samples before it publishes; a watchdog coroutine prints every five seconds
needs: none
ranks: 1
onset: printed
state: hung
cause: unknown, deadlocked_locks, endless_python, stuck_worker
blame: none
twin: none
"""

import asyncio
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(40, 80), torch.nn.ReLU(), torch.nn.Linear(80, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


class Gate:
    def __init__(self):
        self.changed, self.version, self.samples = asyncio.Condition(), 0, []


async def generator(gate):
    number = 0
    while True:
        async with gate.changed:
            await gate.changed.wait_for(lambda: number - gate.version * 4 < 4)
            gate.samples.append(torch.randn(32, 40))
            number += 1
            gate.changed.notify_all()
        await asyncio.sleep(0.01)


async def trainer(gate):
    step = 0
    while True:
        need = 4 if step < 250 else 5
        if step == 250:
            print("ONSET", flush=True)
        async with gate.changed:
            await gate.changed.wait_for(lambda: len(gate.samples) >= need)
            batch, gate.samples = torch.cat(gate.samples), []
            gate.changed.notify_all()
        loss = (net(batch).squeeze(-1) - batch.sum(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        async with gate.changed:
            gate.version += 1
            gate.changed.notify_all()


async def watchdog(gate):
    while True:
        await asyncio.sleep(5)
        print("version", gate.version, "samples", len(gate.samples), flush=True)


async def main():
    gate = Gate()
    await asyncio.gather(generator(gate), trainer(gate), watchdog(gate))


asyncio.run(main())
