"""Encoders.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    encoder_masked     attention_mask       a dense mask that says nothing keeps sdpa from its flash kernel
    encoder_reads      synchronising_reads  a figure is read off the device after each layer
    encoder_defaults   mixed_precision, flash_attention
    encoder_tuned      nothing
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from transformer import Transformer


def program(
    off: Off, *, width: int, layers: int, batch: int, length: int, words: int = 16384, compile_: bool = False
) -> Step:
    """Masked-word prediction; every sentence is full."""
    kind = "plain" if "flash_attention" in off else "masked" if "attention_mask" in off else "sdpa"
    observed = "synchronising_reads" in off
    model: Any = Transformer(
        width, layers, width // 64, words, length=length, causal=False, kind=kind, observed=observed
    ).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    called = compiled(model, off) if compile_ else model
    tokens = torch.randint(words, (batch, length), device=DEVICE)
    hidden = torch.rand(batch, length, device=DEVICE) < 0.15
    mask = torch.zeros(batch, 1, length, length, device=DEVICE) if kind == "masked" else None

    def step() -> None:
        given = None if mask is None else mask.to(torch.bfloat16 if "mixed_precision" not in off else torch.float32)
        with autocast(off):
            logits = called(tokens.masked_fill(hidden, 0), given)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "encoder_masked": Pair(
        lambda off: program(off, width=768, layers=6, batch=4, length=4096, compile_=True),
        ("attention_mask",),
        ("compile",),
    ),
    "encoder_reads": Pair(
        lambda off: program(off, width=768, layers=12, batch=32, length=512, compile_=True),
        ("synchronising_reads",),
        ("compile",),
    ),
    "encoder_defaults": Pair(
        lambda off: program(off, width=768, layers=8, batch=16, length=512),
        ("mixed_precision", "flash_attention"),
        ("tf32",),
    ),
    "encoder_tuned": Pair(lambda off: program(off, width=1024, layers=8, batch=64, length=512, compile_=True)),
}

if __name__ == "__main__":
    main(PAIRS)
