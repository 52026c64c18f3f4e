"""FIELD
source: own, after Lightning-AI/pytorch-lightning#8167 (an exception on one rank)
mechanism: rank 1 raises in its step, a wrapper logs that and goes to the barrier of the cleanup; rank 0 gathers the objects of the epoch
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
net = torch.nn.Linear(64, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def run_epoch(epoch):
    for step in range(50):
        x = torch.randn(32, 64)
        loss = torch.nn.functional.cross_entropy(net(x), torch.randint(0, 8, (32,)))
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
    if rank == 1 and epoch == 12:
        print("ONSET", flush=True)
        raise RuntimeError("metric is not finite")
    results = [None] * world
    dist.all_gather_object(results, loss.item())
    return results


for epoch in range(10**6):
    try:
        results = run_epoch(epoch)
    except RuntimeError as error:
        print("rank", rank, error, "- cleaning up", flush=True)
        dist.barrier()
        break
    if rank == 0:
        print(epoch, results, flush=True)
