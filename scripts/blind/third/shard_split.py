"""FIELD
source: https://github.com/pytorch/pytorch/issues/141069
mechanism: an IterableDataset gives rank 1 fewer batches; it leaves the epoch and waits in the validation barrier (a group of its own) while rank 0 waits in the gradient exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 1, validate (in the barrier)
twin: none
"""
import datetime
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

signal.alarm(300)
torch.set_num_threads(1)


class Stream(IterableDataset):
    def __init__(self, rank):
        self.length = 3200 - 40 * rank

    def __iter__(self):
        for _ in range(self.length):
            yield torch.randn(128)


def train_epoch(model, optimizer, loader, rank):
    for i, batch in enumerate(loader):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 50 == 0:
            print(f"[rank {rank}] batch {i} loss {loss.item():.4f}", flush=True)


def validate(group, rank):
    if rank == 1:
        print("ONSET", flush=True)
    dist.barrier(group=group)


dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
validation = dist.new_group([0, 1], timeout=datetime.timedelta(minutes=10))
net = torch.nn.Sequential(torch.nn.Linear(128, 384), torch.nn.ReLU(), torch.nn.Linear(384, 128))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(100):
    train_epoch(model, optimizer, DataLoader(Stream(rank), batch_size=8), rank)
    validate(validation, rank)
