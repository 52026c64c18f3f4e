"""Each epoch rank 0 has more batches than the others, and torch's ``join`` lets them shadow the rest. Healthy."""

import ranks
import stage
import torch
import torch.distributed as dist


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    rank = dist.get_rank()
    wide = ranks.width(device, 256)
    tower = torch.nn.Sequential(torch.nn.Linear(wide, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide)).to(device)
    net = torch.nn.parallel.DistributedDataParallel(tower)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    rows = ranks.rows(device, wide)
    for epoch in range(10**9):
        if epoch == 1 and rank == 0:
            stage.onset()
        with net.join():
            for _ in range(args.steps + (2 if rank == 0 else 0)):
                sgd.zero_grad()
                net(torch.randn(rows, wide, device=device)).square().mean().backward()
                sgd.step()


main()
