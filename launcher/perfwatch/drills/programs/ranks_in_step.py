"""Ranks that meet in an all_reduce on every step, none later than the others. Healthy."""

import ranks
import stage
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    wide = ranks.width(device, 256)
    tower = torch.nn.Sequential(torch.nn.Linear(wide, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide)).to(device)
    ddp = DistributedDataParallel(tower)
    optimizer = torch.optim.AdamW(ddp.parameters())
    inputs = torch.randn(ranks.rows(device, wide), wide, device=device)
    for step in range(100_000_000):
        if step == args.steps and dist.get_rank() == 0:
            stage.onset()
        loss = torch.nn.functional.mse_loss(ddp(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
