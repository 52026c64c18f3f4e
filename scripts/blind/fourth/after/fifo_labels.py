"""FIELD
source: own (labels come through a FIFO from an annotation tool that was closed)
mechanism: the second dataset of rank 1 opens a named pipe in a DataLoader worker; no process writes to it any more, and rank 0 waits in the exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: blocked_pipe, stuck_worker, stalled_collective
blame: rank 1, __getitem__ (fifo_labels.py)
twin: none
"""

import datetime
import os
import signal
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
rank = dist.get_rank()
fifo = os.path.join(tempfile.mkdtemp(), "labels")
os.mkfifo(fifo)


class Labelled(Dataset):
    def __init__(self, live):
        self.live = live

    def __len__(self):
        return 640

    def __getitem__(self, index):
        if self.live and rank == 1 and index == 320:
            print("ONSET", flush=True)
            with open(fifo) as labels:
                return torch.randn(32), int(labels.readline())
        return torch.randn(32), index % 4


net = torch.nn.Linear(32, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(10**6):
    for x, y in DataLoader(Labelled(epoch >= 3), batch_size=32, num_workers=1):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
    if rank == 0:
        print("epoch", epoch, loss.item(), flush=True)
