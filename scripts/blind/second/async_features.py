"""FIELD
source: empicano/aiomqtt#174 (run_coroutine_threadsafe(...).result() is called from the thread that runs the loop)
mechanism: the epoch callback runs in the event loop's own thread and waits there for a future that only this loop can complete
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: get (async_features.py)
twin: none
"""
import asyncio

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


class FeatureStore:
    def __init__(self, loop):
        self.loop = loop
        self.rng = np.random.default_rng(3)

    async def _fetch(self, ids):
        await asyncio.sleep(0.002)
        return self.rng.standard_normal((len(ids), 64)).astype(np.float32)

    def get(self, ids):
        return torch.from_numpy(asyncio.run_coroutine_threadsafe(self._fetch(ids), self.loop).result())


class Trainer:
    def __init__(self, store):
        self.store = store
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.callbacks = []

    def epoch(self, steps):
        for _ in range(steps):
            ids = np.random.randint(0, 100000, 128)
            x = self.store.get(ids)
            y = torch.from_numpy(ids % 8)
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    async def fit(self, epochs):
        for n in range(epochs):
            loss = await asyncio.to_thread(self.epoch, 500)
            print(f"epoch {n} loss {loss:.3f}", flush=True)
            for callback in self.callbacks:
                callback(self, n)


def probe_accuracy(trainer, epoch):
    if epoch % 4 != 3:
        return
    ids = np.arange(2048)
    print("ONSET", flush=True)
    with torch.no_grad():
        scores = trainer.model(trainer.store.get(ids))
    print("probe", (scores.argmax(1).numpy() == ids % 8).mean(), flush=True)


async def main():
    trainer = Trainer(FeatureStore(asyncio.get_running_loop()))
    trainer.callbacks.append(probe_accuracy)
    await trainer.fit(60)


if __name__ == "__main__":
    asyncio.run(main())
