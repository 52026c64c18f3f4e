"""Attention is computed the plain way, which writes out every pair of positions.

What it means
    The fused kernels (flash, memory-efficient, cuDNN) could not be used, or were not asked for: a mask, a head size, a type, or
    a model that computes attention itself. Time and memory grow with the square of the length.

How it is recognised
    The program's frames are in a model library's own plain attention for a good part of the time, and the card's memory is busy
    while its tensor cores are not. What torch chooses inside ``scaled_dot_product_attention`` shows in no stack and no counter:
    there only a trace can tell, and this rule says so.

What it is mistaken for
    ``memory_bound_gpu``: other kernels that move as many bytes.

What to do next
    ``attn_implementation="sdpa"`` (or ``"flash_attention_2"``); under ``torch.nn.attention.sdpa_kernel(FLASH_ATTENTION)`` torch
    says why the fused kernel is refused.
"""

from perfwatch.probes.readings import GpuActivity, Stack
from perfwatch.triage.accelerated import FEW_SAMPLES, accelerated, monitored, slow_on_gpu
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show
from perfwatch.triage.frames import tags as tags_of_stack
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Abstention, Alternative, Missing, Outcome

CAUSE = Cause("slow_attention_fallback", "slow", "user_code", (GpuActivity, Stack))

EAGER_SHARE = 0.1  # of the samples in a library's plain attention
MEMORY, TENSOR = 0.4, 0.3  # traffic above and tensor use below which attention may be what moves the bytes
ATTENTION = ("attention", "eager_attention")


def judge(case: Case) -> Outcome:
    """Fires on plain attention that the frames show; abstains where only a trace could tell."""
    for one in accelerated(case):
        seen, card = one.profile, one.card
        if card.dram is None or card.dram < MEMORY or (card.tensor or 0.0) > TENSOR or seen.samples < FEW_SAMPLES:
            continue
        share = seen.share("eager_attention")
        if share < EAGER_SHARE:
            return _only_a_trace() if seen.seen(*ATTENTION) else None
        frame = show(seen.top_line(lambda stack: "eager_attention" in tags_of_stack(stack)))
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=0.5 * card.dram,
            explains=0.6 * card.dram,  # of what memory_bound_gpu sees, this is the reason
            confidence=0.85,
            frame=frame,
            summary=f"attention is computed the plain way at {frame}: every pair of positions is written to memory",
            evidence=(
                case.saw(
                    "stack",
                    f"pid {one.rank.pid}",
                    "is in plain attention",
                    f"{share:.0%} of {seen.samples} samples",
                    "0 %",
                ),
                monitored(case, one, "memory busy, tensor cores not", "the other way round"),
            ),
            alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the frames name plain attention"),),
            next=('attn_implementation="sdpa" or "flash_attention_2" when the model is loaded',),
        )
    return None


def _only_a_trace() -> Abstention:
    return Abstention(
        cause=CAUSE.name,
        missing=(
            Missing(
                witness="kernel_trace",
                reason="which attention kernel torch chose shows in no counter and no stack",
                advice="a torch.profiler or nsys window of a few steps names it (math: softmax and bmm kernels)",
            ),
        ),
    )
