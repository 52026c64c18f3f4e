"""Decoders.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    decoder_float32          mixed_precision          (instead: tf32)
    decoder_plain_attention  flash_attention
    decoder_eager            compile
    decoder_loop_optimizer   fused_optimizer
    decoder_checkpointed     checkpointing
    decoder_small_batches    micro_batch
    decoder_vocabulary       matrix_sizes
    decoder_defaults         mixed_precision, flash_attention, fused_optimizer
    decoder_host_state       optimizer_on_cpu
    decoder_tuned            nothing
"""

import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from transformer import Transformer


def program(
    off: Off, *, width: int = 1024, layers: int = 8, batch: int = 8, length: int = 1024, words: int = 32768,
    gated: bool = False, compile_: bool = False, accumulated: int = 1,
) -> Step:  # fmt: skip
    """A decoder that trains on tokens held on the card."""
    if "matrix_sizes" in off:
        words -= 47
    kind = "plain" if "flash_attention" in off else "sdpa"
    model = Transformer(
        width, layers, width // 64, words, length=length, kind=kind, gated=gated, checkpointed="checkpointing" in off
    ).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    called = compiled(model, off) if compile_ else model
    if "micro_batch" in off:
        batch, accumulated = batch // 16, 16
    tokens = torch.randint(words, (accumulated, batch, length + 1), device=DEVICE)

    def step() -> None:
        for part in tokens:
            with autocast(off):
                logits = called(part[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
            (loss / accumulated).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def eager(off: Off) -> Step:
    """A decoder of the kind that model files hold: RMSNorm and SwiGLU written out."""
    return program(off, width=1024, layers=6, gated=True, compile_=True)


def host_state(off: Off) -> Step:
    """Weights on the card, the optimizer's copy and its state on the host."""
    width, batch, length, words = 1024, 8, 1024, 16384
    model = Transformer(width, 6, 16, words, length=length).to(DEVICE)
    away = "optimizer_on_cpu" in off
    held = (
        [torch.nn.Parameter(one.detach().to("cpu", copy=True)) for one in model.parameters()]
        if away
        else list(model.parameters())
    )
    optimizer = torch.optim.AdamW(held, lr=1e-4, fused=True)
    tokens = torch.randint(words, (batch, length + 1), device=DEVICE)

    def step() -> None:
        with autocast(off):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if away:
            for here, there in zip(model.parameters(), held, strict=True):
                there.grad = here.grad.cpu() if here.grad is not None else None
        optimizer.step()
        if away:
            with torch.no_grad():
                for here, there in zip(model.parameters(), held, strict=True):
                    here.copy_(there)
        model.zero_grad()

    return step


PAIRS = {
    "decoder_float32": Pair(program, ("mixed_precision",), ("tf32",)),
    "decoder_plain_attention": Pair(lambda off: program(off, batch=4, length=2048), ("flash_attention",)),
    "decoder_eager": Pair(eager, ("compile",)),
    "decoder_loop_optimizer": Pair(
        lambda off: program(off, width=512, layers=24, batch=4, length=512, words=8192), ("fused_optimizer",)
    ),
    "decoder_checkpointed": Pair(lambda off: program(off, compile_=True), ("checkpointing",), ("compile",)),
    "decoder_small_batches": Pair(
        lambda off: program(off, width=768, batch=16, length=512, words=16384), ("micro_batch",), steps=2
    ),
    "decoder_vocabulary": Pair(lambda off: program(off, width=768, layers=4, words=50304), ("matrix_sizes",)),
    "decoder_defaults": Pair(
        lambda off: program(off, width=768, layers=12, batch=4, length=1024, words=32768),
        ("mixed_precision", "flash_attention", "fused_optimizer"),
        ("tf32",),
    ),
    "decoder_host_state": Pair(host_state, ("optimizer_on_cpu",)),
    "decoder_tuned": Pair(lambda off: program(off, width=1536, layers=8, batch=12, compile_=True)),
}

if __name__ == "__main__":
    main(PAIRS)
