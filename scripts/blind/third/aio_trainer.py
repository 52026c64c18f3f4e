"""FIELD
source: own
mechanism: a trainer written with asyncio: steps run in an executor thread, a coroutine prefetches batches, another answers status requests
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: rollout_groups
"""
import asyncio
import concurrent.futures
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)


class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.steps, self.loss = 0, float("nan")

    def step(self, batch):
        loss = (self.net(batch) - batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        self.loss = loss.item()


async def prefetch(batches):
    while True:
        await batches.put(torch.randn(256, 256))


async def status(reader, writer):
    writer.write(b"ok\n")
    await writer.drain()
    writer.close()


async def main():
    trainer, batches = Trainer(), asyncio.Queue(4)
    loop = asyncio.get_running_loop()
    pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="step")
    server = await asyncio.start_server(status, "127.0.0.1", 0)
    feeder = asyncio.create_task(prefetch(batches))
    async with server:
        while not feeder.done():
            await loop.run_in_executor(pool, trainer.step, await batches.get())
            if trainer.steps == 50:
                print("ONSET", flush=True)
            if trainer.steps % 50 == 0:
                print("step", trainer.steps, trainer.loss, flush=True)


asyncio.run(main())
