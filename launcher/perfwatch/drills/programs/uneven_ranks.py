"""Sequences of random length: now this rank has the longer one, now that one. Uneven, but nobody straggles. Healthy."""

import random

import stage
import torch
import torch.distributed as dist


def train():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(rank)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.GRU(64, 96, batch_first=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(100_000_000):
        if step == args.steps and rank == 0:
            stage.onset()
        length = random.choice((30, 40, 50))
        hidden, _ = net(torch.randn(16, length, 64))
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    train()
