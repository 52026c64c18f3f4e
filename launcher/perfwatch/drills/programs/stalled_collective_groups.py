"""Ranks in pairs (tensor parallel) and in halves (data parallel); the last rank sleeps.

Its partner waits for it in their pair; everybody else waits, in their halves, for one of these two.
"""

import itertools
import time

import ranks
import stage
import torch
import torch.distributed as dist


def rebalance_experts() -> None:
    time.sleep(1_000_000)


def fit() -> None:
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    halves = [dist.new_group(list(range(parity, world, 2))) for parity in (0, 1)]
    layer = torch.nn.Linear(256, 256, device=device)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in itertools.count():
        if step == args.steps and rank == world - 1:
            stage.onset(rank=rank)
            rebalance_experts()
        activation = layer(torch.randn(64, 256, device=device))
        dist.all_reduce(activation.detach(), group=pairs[rank // 2])
        sgd.zero_grad()
        activation.square().mean().backward()
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=halves[rank % 2])
        sgd.step()
        if step % 5 == 0:
            print(step, activation.sum().item(), flush=True)


fit()
