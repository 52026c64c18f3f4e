"""FIELD
source: h5py/h5py#2584 (h5py hangs in a forked process when another thread of the parent held the library lock)
mechanism: DataLoader workers are forked for the next epoch while a statistics thread of the parent holds the library's global lock; the workers wait for a lock that has no owner in them
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks
blame: read_rows () in workers
twin: none
"""

import os
import signal
import tempfile
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BEGIN = time.monotonic()
phil = threading.RLock()  # one lock for the whole library, as h5py has it


class ColumnStore:
    """A tiny container format: rows of float32, read under the library lock."""

    def __init__(self, path, rows, width):
        self.path, self.rows, self.width = path, rows, width

    @classmethod
    def create(cls, path, rows, width):
        rng = np.random.default_rng(7)
        with open(path, "wb") as out:
            for _ in range(0, rows, 1000):
                out.write(rng.standard_normal((1000, width), dtype=np.float32).tobytes())
        return cls(path, rows, width)

    def read_rows(self, start, count):
        with phil:
            with open(self.path, "rb") as handle:
                handle.seek(start * self.width * 4)
                raw = handle.read(count * self.width * 4)
            return np.frombuffer(raw, dtype=np.float32).reshape(count, self.width).copy()

    def column_stats(self):
        """Running mean and deviation of every column, block by block."""
        with phil:
            total = np.zeros(self.width)
            square = np.zeros(self.width)
            for repeat in range(3):
                for start in range(0, self.rows, 500):
                    block = self.read_rows(start, 500).astype(np.float64)
                    total += block.sum(0)
                    square += (block**2).sum(0)
                    time.sleep(0.04)  # a slow network file system
            mean = total / (3 * self.rows)
            return mean, np.sqrt(square / (3 * self.rows) - mean**2)


class Windows(Dataset):
    def __init__(self, store, span=16):
        self.store, self.span = store, span

    def __len__(self):
        return 960

    def __getitem__(self, index):
        x = self.store.read_rows((index * 7) % (self.store.rows - self.span), self.span)
        x = torch.from_numpy(x)
        return x, x.abs().mean()


def arm(_worker):
    signal.alarm(300)


def refresh_stats(store, box):
    mean, dev = store.column_stats()
    box["mean"], box["dev"] = torch.tensor(mean).float(), torch.tensor(dev).float()


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tempfile.mkdtemp(prefix="hdf")
    store = ColumnStore.create(os.path.join(folder, "flow.bin"), 20000, 64)
    loader = DataLoader(Windows(store), batch_size=32, shuffle=True, num_workers=2, worker_init_fn=arm)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16 * 64, 256), nn.GELU(), nn.Linear(256, 1))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    box, refresher = {}, None
    for epoch in range(10000):
        if refresher is None and time.monotonic() - BEGIN > 9:
            print(f"epoch {epoch}: refreshing the column statistics in the background")
            refresher = threading.Thread(target=refresh_stats, args=(store, box), name="stats", daemon=True)
            refresher.start()
            time.sleep(0.2)
            print("ONSET", flush=True)
        for x, y in loader:
            if box:
                x = (x - box["mean"]) / box["dev"]
            loss = nn.functional.mse_loss(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.01)
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
