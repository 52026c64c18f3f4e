"""A small decoder that trains on one GPU: what the figures of ``perfwatch capture torch`` in the README were taken on.

    perfwatch run -- python scripts/measured_decoder.py SECONDS [sick]

55 M parameters, 16 x 512 tokens a step, bf16, AdamW. ``sick``: FP32 without TF32, SDPA's math kernel, pageable copies, no
workers, and the loss read at each step. Says "ready" after three seconds, and at the end its own steps/s since then.
"""

import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HEADS, LAYERS, BATCH, LENGTH, WORDS = 768, 12, 6, 16, 512, 8192
WARM_UP_SECONDS = 3.0


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


def main(seconds: float, sick: bool) -> None:
    """Train for so long."""
    blocks = [Block(sick) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, WORDS, (100_000, LENGTH + 1))
    workers = 0 if sick else 2
    loader: Any = DataLoader(TensorDataset(tokens), BATCH, shuffle=True, num_workers=workers, pin_memory=not sick)
    began, steps, warm, total = time.monotonic(), 0, None, 0.0
    while time.monotonic() - began < seconds:
        for (batch,) in loader:
            on_card = batch.to("cuda", non_blocking=not sick)
            with torch.autocast("cuda", torch.bfloat16, enabled=not sick):
                loss = F.cross_entropy(model(on_card[:, :-1]).flatten(0, 1).float(), on_card[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
            total += loss.item() if sick else 0.0
            now = time.monotonic() - began
            if warm is None and now > WARM_UP_SECONDS:
                warm = (steps, now)
                print("ready", flush=True)
            if now > seconds:
                break
    torch.cuda.synchronize()
    if warm is not None:
        print(f"{(steps - warm[0]) / (time.monotonic() - began - warm[1]):.2f} steps/s", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), "sick" in sys.argv[2:])
