"""A small decoder that trains on a GPU: the job of the figures of ``perfwatch capture`` in tests/RESULTS.md.

    perfwatch run -- python scripts/measured_decoder.py SECONDS [sick]
    perfwatch run -- torchrun --nproc-per-node 2 scripts/measured_decoder.py SECONDS

55 M parameters, 16 x 512 tokens a step, bf16, AdamW. ``sick``: FP32 without TF32, SDPA's math kernel, pageable copies, no
workers, and the loss read at each step. Under torchrun it is DDP: over NCCL where each rank has a card, else over gloo with all
ranks on one. Says four times a second how many steps rank 0 has made, like measured_loop.
"""

import json
import os
import resource
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HEADS, LAYERS, BATCH, LENGTH, WORDS = 768, 12, 6, 16, 512, 8192
SAID_EVERY_SECONDS = 0.25
AGREED_EVERY = 50  # steps


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, sick: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.sick = sick

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, _ = x.shape
        parts = self.inputs(self.before(x)).chunk(3, -1)
        query, key, value = (one.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for one in parts)
        with sdpa_kernel([SDPBackend.MATH]) if self.sick else nullcontext():
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        result: torch.Tensor = x + self.wide(self.between(x))
        return result


def join() -> int:
    """Become one of torchrun's ranks, if this is one, with a card of its own or shared. Returns the rank."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cards = torch.cuda.device_count()
    torch.cuda.set_device(rank % cards)
    if ranks > 1:
        dist.init_process_group("nccl" if cards >= ranks else "gloo")
    return rank


def over(late: bool, steps: int) -> bool:
    """Whether to stop after this step: of several ranks the first says so, and now and then, so that all stop after the same one."""
    if not dist.is_initialized():
        return late
    if steps % AGREED_EVERY:
        return False
    said = torch.tensor([late], device="cuda")
    dist.broadcast(said, 0)
    return bool(said.item())


def main(seconds: float, sick: bool) -> None:
    """Train for so long."""
    rank = join()
    blocks = [Block(sick) for _ in range(LAYERS)]
    model: nn.Module = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)).cuda()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, WORDS, (100_000, LENGTH + 1))
    workers = 0 if sick else 2
    loader: Any = DataLoader(TensorDataset(tokens), BATCH, shuffle=True, num_workers=workers, pin_memory=not sick)
    began, steps, total = time.monotonic(), 0, 0.0
    said = began
    done = False
    while not done:
        for (batch,) in loader:
            on_card = batch.to("cuda", non_blocking=not sick)
            with torch.autocast("cuda", torch.bfloat16, enabled=not sick):
                loss = F.cross_entropy(model(on_card[:, :-1]).flatten(0, 1).float(), on_card[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
            total += loss.item() if sick else 0.0
            now = time.monotonic()
            if rank == 0 and now - said >= SAID_EVERY_SECONDS:
                said = now
                usage = resource.getrusage(resource.RUSAGE_SELF)
                line = {"at": now, "steps": steps, "cpu_seconds": usage.ru_utime + usage.ru_stime}
                print(json.dumps(line), flush=True)
            done = over(now - began > seconds, steps)
            if done:
                break
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]), "sick" in sys.argv[2:])
