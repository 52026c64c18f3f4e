"""FIELD
source: own (k-means with an empty cluster: the centre is NaN, and nothing ever converges)
mechanism: between epochs each rank clusters its features; on rank 1 a centre becomes NaN and the loop 'until stable' never ends, and the others wait in the barrier
needs: none
ranks: 3
onset: printed
state: hung
cause: endless_python, stalled_collective
blame: rank 1, assign_until_stable (empty_cluster.py)
twin: none
"""

import datetime
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
rank = dist.get_rank()
torch.manual_seed(rank)
net = torch.nn.Linear(24, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.05)


def assign_until_stable(features, k):
    centres = features[:k].clone()
    while True:
        labels = torch.cdist(features, centres).argmin(1)
        updated = torch.stack([features[labels == i].mean(0) for i in range(k)])
        if torch.allclose(updated, centres, atol=1e-2):
            return labels
        centres = updated


for epoch in range(10**6):
    features = torch.randn(600, 24)
    if epoch == 8 and rank == 1:
        print("ONSET", flush=True)
        features[:4] = features[0]
    if epoch == 8 or epoch % 4 == 0:
        labels = assign_until_stable(features, 4) if rank == 1 and epoch == 8 else torch.randint(0, 8, (600,))
    dist.barrier()
    for chunk in torch.randperm(600).split(30):
        loss = torch.nn.functional.cross_entropy(net(features[chunk]), labels[chunk] % 8)
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
    if rank == 0:
        print("epoch", epoch, loss.item(), flush=True)
