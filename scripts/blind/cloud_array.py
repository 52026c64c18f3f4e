"""FIELD
source: https://github.com/fsspec/filesystem_spec/issues/835 and https://github.com/czbiohub-sf/iohub/issues/416 (event loop thread of an async filesystem does not survive fork)
mechanism: the async store starts its event loop thread in the parent; forked DataLoader workers inherit the loop object without the thread, so the futures that they submit to it are never done
needs: cpu
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks
blame: read_chunk (cloud_array.py)
twin: none
"""
import asyncio
import os
import tempfile
import threading

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class AsyncStore:
    """Synchronous face of an asynchronous chunk store."""

    _loop = None

    def __init__(self, root):
        self.root = root

    @classmethod
    def loop(cls):
        if cls._loop is None:
            cls._loop = asyncio.new_event_loop()
            threading.Thread(target=cls._loop.run_forever, daemon=True, name="store-io").start()
        return cls._loop

    async def _get(self, key):
        def read():
            with open(os.path.join(self.root, key), "rb") as f:
                return f.read()
        return await asyncio.get_running_loop().run_in_executor(None, read)

    def read_chunk(self, key):
        fut = asyncio.run_coroutine_threadsafe(self._get(key), self.loop())
        return np.frombuffer(fut.result(), dtype=np.float32).reshape(64, 128)


class ChunkedArray(Dataset):
    def __init__(self, store, n_chunks):
        self.store, self.n = store, n_chunks

    def __len__(self):
        return self.n * 64

    def __getitem__(self, i):
        chunk = self.store.read_chunk(f"c{i // 64}")
        return torch.from_numpy(chunk[i % 64].copy())


def run_epoch(model, opt, loader):
    for x in loader:
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    root = tempfile.mkdtemp(prefix="arr_")
    rng = np.random.default_rng(0)
    for c in range(130):
        rng.standard_normal((64, 128), dtype=np.float32).tofile(os.path.join(root, f"c{c}"))
    data = ChunkedArray(AsyncStore(root), 130)
    model = nn.Sequential(nn.Linear(128, 1024), nn.Tanh(), nn.Linear(1024, 128))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(6):
        workers = 0 if epoch < 2 else 2           # short profiling epochs first, then at full speed
        if epoch == 2:
            print("ONSET", flush=True)
        print(epoch, run_epoch(model, opt, DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)), flush=True)


if __name__ == "__main__":
    main()
