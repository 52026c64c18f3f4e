"""FIELD
source: https://github.com/meta-pytorch/torchrec/pull/4149
mechanism: two process groups with the same members; after a warm-up rank 0 issues shard then replicate, rank 1 replicate then shard, and each waits in a different one
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective
blame: shard_exchange (rank 0), replicate_reduce (rank 1), rank 0, rank 1
twin: none
"""
import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank, world = dist.get_rank(), dist.get_world_size()
mesh_shard = dist.new_group(timeout=datetime.timedelta(minutes=10))
mesh_replicate = dist.new_group(timeout=datetime.timedelta(minutes=10))
tables = torch.nn.EmbeddingBag(4000, 64)
dense = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.Adagrad([*tables.parameters(), *dense.parameters()], lr=0.01)


def shard_exchange(pooled):
    parts = [torch.empty_like(pooled) for _ in range(world)]
    dist.all_gather(parts, pooled.detach(), group=mesh_shard)
    return sum(parts) / world


def replicate_reduce():
    for parameter in dense.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=mesh_replicate)


for step in range(10**6):
    bags = torch.randint(0, 4000, (128, 20))
    pooled = tables(bags)
    swapped = rank == 1 and step == 400
    if rank == 0 and step == 400:
        print("ONSET", flush=True)
    if swapped:
        replicate_reduce()
    context = shard_exchange(pooled)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        dense(pooled + context).squeeze(1), torch.rand(128).round()
    )
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    if not swapped:
        replicate_reduce()
    optimizer.step()
    if step % 50 == 0 and rank == 0:
        print("step", step, loss.item(), flush=True)
