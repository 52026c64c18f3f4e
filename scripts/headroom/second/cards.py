"""Second set, written from the list of levers alone: two ranks (torchrun --nproc-per-node 2; one card each).

ANSWERS (off: the levers that are off, the one expected to bring most first)
    sharded_twice    fsdp_reshard, fsdp_prefetch   weights are gathered again for the backward pass, each when it is needed
    unused_search    unused_parameters             DDP looks for unused parameters in a model that uses all of them
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, main
from torch import Tensor, nn
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

CARD = DEVICE == "cuda"


class Wide(nn.Module):
    """A wide perceptron with a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


def sharded_twice(off: Off) -> Step:
    """FSDP over wide layers and few rows."""
    width, layers, rows = (4096, 8, 2048) if CARD else (32, 2, 8)
    strategy = ShardingStrategy.FULL_SHARD if "fsdp_reshard" in off else ShardingStrategy.SHARD_GRAD_OP
    late = "fsdp_prefetch" in off
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(
        nn.Sequential(*(Wide(width) for _ in range(layers))).to(DEVICE), auto_wrap_policy=ModuleWrapPolicy({Wide}),
        sharding_strategy=strategy, backward_prefetch=None if late else BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=not late, mixed_precision=half if CARD else None, use_orig_params=True,
        device_id=torch.cuda.current_device() if CARD else torch.device("cpu"),
    )  # fmt: skip
    optimizer: Any = adam(model.parameters(), off)
    x = torch.randn(rows, width, device=DEVICE)

    def step() -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def unused_search(off: Off) -> Step:
    """DDP over many small layers."""
    width, layers, rows = (256, 300, 512) if CARD else (16, 4, 4)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))).to(DEVICE)
    ranks: Any = DistributedDataParallel(model, find_unused_parameters="unused_parameters" in off)
    optimizer = adam(model.parameters(), off)
    x = torch.randn(rows, width, device=DEVICE)

    def step() -> None:
        with autocast(off):
            loss = ranks(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "sharded_twice": Pair(sharded_twice, ("fsdp_reshard", "fsdp_prefetch")),
    "unused_search": Pair(unused_search, ("unused_parameters",)),
}

if __name__ == "__main__":
    if CARD:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if CARD else "gloo", timeout=timedelta(seconds=60))
    main(PAIRS)
    if dist.is_initialized():
        dist.destroy_process_group()
