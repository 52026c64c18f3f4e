"""FIELD
source: own
mechanism: two ranks, of which rank 1 makes five times as many passes per step
needs: none
ranks: 2
onset: printed
state: slow
cause: straggling_rank
blame: rank 1, <module> (trains)
twin: even_pair
"""
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.Adam(net.parameters())
for step in range(10**6):
    for _ in range(10 if rank == 1 else 2):
        x = torch.randn(256, 256)
        (net(x) - x).square().mean().backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
    if step == 10 and rank == 0:
        print("ONSET", flush=True)
