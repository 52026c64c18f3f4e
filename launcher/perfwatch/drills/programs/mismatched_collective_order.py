"""Two ranks, two groups of the same ranks: rank 0 calls one group first, rank 1 the other. Each waits for the other."""

import itertools

import ranks
import stage
import torch
import torch.distributed as dist


def sum_loss(loss: torch.Tensor, group: dist.ProcessGroup) -> float:
    dist.all_reduce(loss, group=group)
    return loss.item()


def sum_tokens(count: torch.Tensor, group: dist.ProcessGroup) -> float:
    dist.all_reduce(count, group=group)
    return count.item()


def main() -> None:
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    device = ranks.join(args)
    rank = dist.get_rank()
    everybody = list(range(dist.get_world_size()))
    losses, tokens = dist.new_group(everybody), dist.new_group(everybody)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in itertools.count():
        sgd.zero_grad()
        loss = net(torch.randn(64, 256, device=device)).square().mean()
        loss.backward()
        sgd.step()
        total, count = loss.detach().clone(), torch.tensor([64.0], device=device)
        if step == args.steps:
            stage.onset(rank=rank)
        if step >= args.steps and rank == 1:  # a branch that only this rank takes
            sum_tokens(count, tokens)
            sum_loss(total, losses)
        else:
            sum_loss(total, losses)
            sum_tokens(count, tokens)


main()
