"""FIELD
source: pytorch/vision#557 and lightly-ai/lightly#384 (listing a folder of many files is slow), here in __getitem__
mechanism: each item lists the whole folder of 12,000 tiny files again, sorts it, and opens three of them; the loader has no workers
needs: none
ranks: 1
onset: printed
state: slow
cause: serial_loading, starved_by_storage
blame: __getitem__ (folder_of_crumbs.py)
twin: none
"""

import os
import signal
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

signal.alarm(300)
torch.set_num_threads(1)
root = tempfile.mkdtemp()
for i in range(12_000):
    with open(os.path.join(root, f"{i:06d}.bin"), "wb") as file:
        file.write(np.full(32, i, dtype="float32").tobytes())


class Crumbs(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".bin"))
        parts = []
        for name in names[index * 3 : index * 3 + 3]:
            with open(os.path.join(self.folder, name), "rb") as file:
                parts.append(np.frombuffer(file.read(), dtype="float32"))
        return torch.from_numpy(np.concatenate(parts) / 12_000)


net = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.ReLU(), torch.nn.Linear(64, 96))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
step = 0
while True:
    for batch in DataLoader(Crumbs(root), batch_size=32, shuffle=True):
        loss = (net(batch) - batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step == 5:
            print("ONSET", flush=True)
        if step % 5 == 0:
            print(step, loss.item(), flush=True)
