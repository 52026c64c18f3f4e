"""FIELD
source: fsspec/s3fs#914 and datachain-ai/datachain#691 (the event loop of an asynchronous file system runs in a thread; a forked worker has the loop and not the thread)
mechanism: the parent reads the index through an asyncio loop in a background thread; then a DataLoader forks its workers, and each submits its read to the loop that nothing runs in it
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks
blame: cat_ranges (s3_reader_fork.py), __getitem__ (s3_reader_fork.py)
twin: none
"""

import asyncio
import signal
import threading

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

signal.alarm(300)
torch.set_num_threads(1)


class ObjectStore:
    """A file system with a synchronous face and an asynchronous heart."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="fs-io", daemon=True).start()

    async def _cat_range(self, key, start, size):
        await asyncio.sleep(0.002)
        rng = np.random.default_rng(hash((key, start)) % 2**32)
        return rng.standard_normal(size).astype("float32")

    async def _gather(self, wanted):
        return await asyncio.gather(*[self._cat_range(*one) for one in wanted])

    def cat_ranges(self, wanted):
        return asyncio.run_coroutine_threadsafe(self._gather(wanted), self.loop).result()


fs = ObjectStore()


class ZarrPatches(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        image, target = fs.cat_ranges([(f"img/{index}", 0, 3 * 32 * 32), (f"lab/{index}", 0, 10)])
        return torch.from_numpy(image), torch.from_numpy(target)


model = torch.nn.Sequential(torch.nn.Linear(3 * 32 * 32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)


def run_epoch(loader):
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


run_epoch(DataLoader(ZarrPatches(), batch_size=16))
print("ONSET", flush=True)
print("switching to 2 workers", flush=True)
while True:
    run_epoch(DataLoader(ZarrPatches(), batch_size=16, num_workers=2))
