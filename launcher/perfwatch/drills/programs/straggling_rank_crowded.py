"""Some ranks, each on a core of its own; other people's processes come to the core of rank 1, which is late from then on."""

import os

import ranks
import stage
import torch

NEIGHBOURS = {"loud": 4, "quiet": 2, "masked": 1}


def transcode(begin):
    os.read(begin, 1)
    while True:
        pass


def main():
    args = stage.arguments(__doc__)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    begin, begun = os.pipe()
    crowded = os.environ["RANK"] == "1"
    if crowded:
        for _ in range(NEIGHBOURS[args.strength]):
            stage.outsider(lambda: transcode(begin))
    torch.set_num_threads(1)
    device = ranks.join(args)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(100_000_000):
        if step == args.steps and crowded:
            os.write(begun, b"!" * NEIGHBOURS[args.strength])
            stage.onset()
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()


def batch():
    return torch.rand(4096, 512).sort(dim=0).values


main()
