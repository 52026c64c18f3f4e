"""FIELD
source: own
mechanism: rank 0 validates for two minutes and a half while rank 1 waits in the barrier behind it
needs: none
ranks: 2
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: shard_split
"""
import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
layer = torch.nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(24, 96), layer, torch.nn.Linear(96, 24)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


@torch.no_grad()
def validate(seconds):
    model.eval()
    end, total, batches = time.monotonic() + seconds, 0.0, 0
    while time.monotonic() < end:
        x = torch.randn(32, 64, 24)
        total += (model.module(x) - x).square().mean().item()
        batches += 1
    model.train()
    return total / batches


def epoch(number, steps):
    for step in range(steps):
        x = torch.randn(16, 64, 24)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"epoch {number} step {step} loss {loss.item():.3f}", flush=True)


for number in range(1000):
    epoch(number, 100)
    if rank == 0:
        print("ONSET", flush=True) if number == 0 else None
        print("validation", validate(150 if number == 0 else 3), flush=True)
    dist.barrier()
