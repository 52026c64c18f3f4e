"""Decoders over two ranks (torchrun --nproc-per-node 2; one card each).

ANSWERS (off: the levers that are off, the one expected to bring most first)
    ddp_accumulation   no_sync        gradients are exchanged after each of eight micro-batches
    ddp_buckets        bucket_size    one bucket for all: nothing of the exchange overlaps
    ddp_tuned          nothing
"""

import contextlib
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, main
from torch.nn.parallel import DistributedDataParallel
from transformer import Transformer


def program(off: Off, *, batch: int, length: int, accumulated: int) -> Step:
    """A decoder under DDP."""
    words = 16384
    model = Transformer(1024, 8, 16, words, length=length).to(DEVICE)
    cap = 4000 if "bucket_size" in off else 25
    ranks: Any = DistributedDataParallel(model, bucket_cap_mb=cap, gradient_as_bucket_view=True)
    optimizer = adam(model.parameters(), off)
    tokens = torch.randint(words, (accumulated, batch, length + 1), device=DEVICE)

    def step() -> None:
        for number, part in enumerate(tokens):
            last = number == accumulated - 1
            with contextlib.nullcontext() if last or "no_sync" in off else ranks.no_sync():
                with autocast(off):
                    loss = F.cross_entropy(ranks(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
                (loss / accumulated).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "ddp_accumulation": Pair(lambda off: program(off, batch=2, length=1024, accumulated=8), ("no_sync",), steps=2),
    "ddp_buckets": Pair(lambda off: program(off, batch=4, length=1024, accumulated=1), ("bucket_size",)),
    "ddp_tuned": Pair(lambda off: program(off, batch=16, length=1024, accumulated=1)),
}

if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", timeout=timedelta(seconds=60))
    main(PAIRS)
    if dist.is_initialized():
        dist.destroy_process_group()
