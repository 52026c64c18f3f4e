"""FIELD
source: https://github.com/empicano/aiomqtt/issues/174 and https://github.com/crewAIInc/crewAI/pull/5788 (run_coroutine_threadsafe(...).result() on the loop's own thread)
mechanism: the training runs as a coroutine and calls a blocking wrapper that schedules another coroutine on the same event loop and waits for it, so the loop that should run it is blocked
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: save_sync (async_trainer.py)
twin: none
"""
import asyncio
import io
import os
import tempfile

import torch
import torch.nn as nn


class BlobStore:
    def __init__(self, root, loop):
        self.root, self.loop = root, loop
        self.sem = asyncio.Semaphore(2)

    async def save(self, key, blob):
        async with self.sem:
            path = os.path.join(self.root, key)
            await asyncio.to_thread(self._write, path, blob)
            return len(blob)

    @staticmethod
    def _write(path, blob):
        with open(path, "wb") as f:
            f.write(blob)

    def save_sync(self, key, blob):
        """For callbacks that are not coroutines."""
        return asyncio.run_coroutine_threadsafe(self.save(key, blob), self.loop).result()


def dump(model):
    buf = io.BytesIO()
    torch.save(model.state_dict(), buf)
    return buf.getvalue()


def on_best(store, model, loss):
    return store.save_sync("best.pt", dump(model))


async def train(model, opt, store):
    best = float("inf")
    for epoch in range(30):
        for step in range(300):
            x = torch.randn(64, 300)
            loss = (model(x) - x.sin()).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 0:
                await asyncio.sleep(0)
        size = await store.save("last.pt", dump(model))
        print(f"epoch {epoch} loss {loss.item():.4f} saved {size}", flush=True)
        if epoch >= 5 and loss.item() < best:
            best = loss.item()
            print("ONSET", flush=True)
            on_best(store, model, best)


async def main():
    torch.set_num_threads(1)
    store = BlobStore(tempfile.mkdtemp(prefix="blobs_"), asyncio.get_running_loop())
    model = nn.Sequential(nn.Linear(300, 900), nn.ReLU(), nn.Linear(900, 300))
    await train(model, torch.optim.Adam(model.parameters(), lr=1e-3), store)


if __name__ == "__main__":
    asyncio.run(main())
