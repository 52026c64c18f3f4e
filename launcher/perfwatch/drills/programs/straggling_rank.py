"""Some ranks; rank 1 prepares its batch far more slowly than the others, which wait for it in every all_reduce."""

import ranks
import stage
import torch
import torch.distributed as dist

SORTS = {"loud": 24, "quiet": 7, "masked": 6}


def prepare_batch(times):
    values = torch.rand(20_000)
    for _ in range(times):
        values = values[torch.randperm(len(values))].sort().values
    return values[:512].expand(128, 512)


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    slow = dist.get_rank() == 1
    for step in range(100_000_000):
        if step == args.steps and slow:
            stage.onset()
        batch = prepare_batch(SORTS[args.strength] if slow and step >= args.steps else 1).to(device)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


main()
