"""Two ranks that meet in an all_reduce on every step, neither later than the other. Healthy."""

import stage
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tower = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    ddp = DistributedDataParallel(tower)
    optimizer = torch.optim.AdamW(ddp.parameters())
    inputs = torch.randn(256, 256)
    for step in range(100_000_000):
        if step == args.steps and dist.get_rank() == 0:
            stage.onset()
        loss = torch.nn.functional.mse_loss(ddp(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
