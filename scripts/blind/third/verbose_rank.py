"""FIELD
source: own
mechanism: three ranks; rank 2 alone computes per-sample statistics in Python after each backward pass, and the others wait for it in each gradient exchange
needs: none
ranks: 3
onset: printed
state: slow
cause: straggling_rank
blame: rank 2, sample_statistics (on rank 2)
twin: none
"""
import datetime
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
model = DDP(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def sample_statistics(batch):
    table = {}
    for row in batch.tolist():
        for i, value in enumerate(row):
            low, high, total = table.get(i, (9e9, -9e9, 0.0))
            table[i] = (min(low, value), max(high, value), total + value * value)
    return table


for step in range(10**6):
    batch = torch.randn(4096 if rank == 2 else 64, 32)
    if rank == 2:
        sample_statistics(batch)
        batch = batch[:64]
    loss = (model(batch) - batch).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"rank {rank} step {step} {loss.item():.4f}", flush=True)
    if step == 30 and rank == 0:
        print("ONSET", flush=True)
