"""FIELD
source: own
mechanism: an asyncio trainer awaits an AsyncSoftFileLock whose file a dead run left
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file, unknown, deadlocked_locks
blame: none
twin: sibling_soft_lock
"""
import asyncio
import signal
import tempfile

import torch
from filelock import AsyncSoftFileLock

signal.alarm(300)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
optimizer = torch.optim.Adam(net.parameters())


async def shard(name):
    async with AsyncSoftFileLock(f"{folder}/{name}.lock"):
        return torch.randn(4096, 64)


async def main():
    for number in range(10**6):
        if number == 20:
            with open(f"{folder}/shard20.lock", "w") as left:
                left.write("977\nnode9\n")
            print("ONSET", flush=True)
        data = await shard(f"shard{number}")
        for rows in data.split(128):
            loss = (net(rows) - rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(number, loss.item(), flush=True)


asyncio.run(main())
