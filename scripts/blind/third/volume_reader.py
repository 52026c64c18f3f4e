"""FIELD
source: https://github.com/h5py/h5py/issues/2584
mechanism: a warm-up thread of the parent holds the reader library's one global lock when the DataLoader forks its workers; in the children nobody will ever release it
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks
blame: read_slab (waits for the inherited lock), __getitem__ (calls it)
twin: none
"""
import os
import signal
import tempfile
import threading
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

signal.alarm(300)
torch.set_num_threads(1)
PHIL = threading.RLock()


def read_slab(path, i):
    with PHIL:
        with open(path, "rb") as file:
            file.seek(4096 * i)
            return np.frombuffer(file.read(4096), dtype=np.float32)


class Volume(Dataset):
    def __init__(self, path, length):
        self.path, self.length = path, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return torch.from_numpy(read_slab(self.path, i).copy())


def prefetch_metadata(path):
    while True:
        with PHIL:
            for i in range(64):
                with open(path, "rb") as file:
                    file.seek(4096 * i)
                    file.read(64)
            time.sleep(0.6)
        time.sleep(0.002)


folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "volume.bin")
np.random.default_rng(0).standard_normal(1024 * 256).astype(np.float32).tofile(path)
data = Volume(path, 256)
model = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1024))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def fit(loader, epochs):
    for epoch in range(epochs):
        for batch in loader:
            loss = (model(batch) - batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


fit(DataLoader(data, batch_size=16), 30)  # the parent reads by itself at first
threading.Thread(target=prefetch_metadata, args=(path,), daemon=True).start()
time.sleep(0.3)
print("ONSET", flush=True)
fit(DataLoader(data, batch_size=16, num_workers=2), 100000)
