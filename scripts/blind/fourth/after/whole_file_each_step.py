"""FIELD
source: own, after reports that torch.load of the whole set was put into the loop
mechanism: each step loads the whole set of features from disk with torch.load and takes 64 rows of it
needs: none
ranks: 1
onset: printed
state: slow
cause: serial_loading, starved_by_storage
blame: load_batch (whole_file_each_step.py)
twin: none
"""

import os
import signal
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
path = os.path.join(tempfile.mkdtemp(), "features.pt")
torch.save({"x": torch.randn(60_000, 256), "y": torch.randint(0, 10, (60_000,))}, path)


def load_batch(rows):
    everything = torch.load(path)
    return everything["x"][rows], everything["y"][rows]


net = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10**6):
    x, y = load_batch(torch.randint(0, 60_000, (64,)))
    loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 30:
        print("ONSET", flush=True)
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
