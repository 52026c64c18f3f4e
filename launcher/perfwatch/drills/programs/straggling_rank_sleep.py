"""Look-alike of a stalled collective: rank 1 comes 3 s late to every all_reduce, but it does come."""

import time

import ranks
import stage
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def fetch_features(rank, step, healthy):
    if step == healthy and rank == 1:
        stage.onset(rank=rank)
    if step >= healthy and rank == 1:
        time.sleep(3.0)
    return torch.randn(64, 200)


def run(args, healthy):
    torch.set_num_threads(1)
    device = ranks.join(args)
    wide = DistributedDataParallel(torch.nn.Linear(200, 1000).to(device))
    sgd = torch.optim.SGD(wide.parameters(), lr=0.01)
    for step in range(10**6):
        x = fetch_features(dist.get_rank(), step, healthy).to(device)
        sgd.zero_grad()
        wide(x).square().mean().backward()
        sgd.step()
        if device.type == "cuda":
            torch.cuda.synchronize()


options = stage.arguments()
run(options, options.steps)
