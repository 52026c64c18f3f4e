"""FIELD
source: Lightning-AI/pytorch-lightning#19106 (log_dict with other keys on other ranks: one rank reduces a metric that the other does not have)
mechanism: the metric of the rare class exists only on rank 0 in this epoch; rank 0 reduces it, and rank 1 is already in the broadcast of the next epoch's permutation
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective
blame: rank 0, rank 1
twin: none
"""

import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 5))
for p in net.parameters():
    dist.broadcast(p.data, 0)
optim = torch.optim.AdamW(net.parameters(), lr=1e-3)


def sync_dict(metrics):
    out = {}
    for key in sorted(metrics):
        value = torch.tensor(float(metrics[key]))
        dist.all_reduce(value)
        out[key] = value.item() / world
    return out


def epoch_order(n):
    order = torch.randperm(n)
    dist.broadcast(order, src=0)
    return order


def fit_one(data, labels):
    for chunk in epoch_order(len(data)).split(32):
        mine = chunk[rank::world]
        loss = torch.nn.functional.cross_entropy(net(data[mine]), labels[mine])
        optim.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optim.step()
    return loss.item()


generator = torch.Generator().manual_seed(7)
data = torch.randn(1024, 64, generator=generator)
labels = torch.randint(0, 5, (1024,), generator=generator)
for epoch in range(10**6):
    loss = fit_one(data, labels)
    metrics = {"loss": loss, "acc/common": 0.5 + 0.1 * torch.rand(()).item()}
    if epoch >= 25 and rank == 0:
        if epoch == 25:
            print("ONSET", flush=True)
        metrics["recall/rare"] = 0.1
    summary = sync_dict(metrics)
    if rank == 0:
        print(epoch, summary, flush=True)
