"""Two ranks disagree: rank 0 all_reduces its loss while rank 1, after one batch less, is already in the final
all_gather.
"""

import ranks
import stage
import torch
import torch.distributed as dist


def shard_length(rank: int, steps: int) -> int:
    return steps + 1 if rank == 0 else steps  # nobody dropped the last, uneven batch


def average(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


def gather_scores(score: torch.Tensor) -> list[torch.Tensor]:
    scores = [torch.empty_like(score) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, score)
    return scores


def fit() -> None:
    args = stage.arguments()
    torch.set_num_threads(1)
    device = ranks.join(args)
    rank = dist.get_rank()
    layer = torch.nn.Linear(512, 512, device=device)
    adam = torch.optim.Adam(layer.parameters())
    for i in range(shard_length(rank, args.steps)):
        loss = (layer(torch.randn(256, 512, device=device)) - 1).pow(2).mean()
        adam.zero_grad()
        loss.backward()
        for p in layer.parameters():
            if i == args.steps:
                stage.onset(rank=rank)
            average(p.grad)
        adam.step()
    print(gather_scores(loss.detach().repeat(1000)))
    dist.destroy_process_group()


fit()
