"""Attention is computed the plain way, which writes out every pair of positions.

What it means
    The fused kernels (flash, memory-efficient, cuDNN) could not be used, or were not asked for: a mask, a head size, a type, or
    a model that computes attention itself. Time and memory grow with the square of the length.

How it is recognised
    The program's frames are in a model library's own plain attention for a good part of the time, and the card's memory is busy
    while its tensor cores are not. Which kernels torch chooses inside ``scaled_dot_product_attention`` shows in no stack: it is
    only suspected, where that function is called, the card is full, and neither its tensor cores nor its memory come near what
    fused kernels would make of them; otherwise this rule says that a trace is needed. In a trace (``perfwatch capture torch``)
    the plain implementation has a name of its own, and that decides.

What it is mistaken for
    ``memory_bound_gpu``: other kernels that move as many bytes. ``wrong_precision``: fp32 products, without any tensor work.

What to do next
    ``attn_implementation="sdpa"`` (or ``"flash_attention_2"``); under ``torch.nn.attention.sdpa_kernel(FLASH_ATTENTION)`` torch
    says why the fused kernel is refused. A trace of a few steps shows softmax and bmm kernels instead of one.
"""

from functools import partial

from perfwatch.probes.readings import GpuActivity, SourceLine, Stack, TorchTrace
from perfwatch.triage.accelerated import FEW_SAMPLES, Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.case import Case
from perfwatch.triage.frames import any_tag, show, tags, user_frame
from perfwatch.triage.gpu import name_of
from perfwatch.triage.residency import BUSY
from perfwatch.triage.rule import Cause
from perfwatch.triage.traced import WITNESS, trace_of
from perfwatch.triage.verdict import Abstention, Alternative, Missing, Outcome

CAUSE = Cause("slow_attention_fallback", "slow", "user_code", (GpuActivity, Stack))

EAGER_SHARE = 0.1  # of the samples in a library's plain attention
MEMORY, TENSOR = 0.4, 0.3  # traffic above and tensor use below which attention may be what moves the bytes
# Measured on H200, a decoder with 4,096 tokens in bf16: fused 0.55 tensor and 0.32 DRAM, plain 0.045 and 0.37 (fp32 0.40).
PLAIN_TENSOR = 0.1
PLAIN_MEMORY = 0.3
PLAIN_SOFTMAX = 0.6  # of DRAM and fp32 together: the scores are written, read and exponentiated
ATTENDS = 0.02  # of the samples: with a full queue the host is seldom seen at the call
PROVED, SUSPECTED, TRACED = 0.85, 0.62, 0.92
TRACED_SHARE = 0.05  # of the card's time, in the forward pass alone
WITH_BACKWARD, MOST_LOST = 2.5, 0.8  # the backward pass of attention takes about one and a half times its forward
TENSOR_SEEN = 0.03  # below it no product uses them: that is the precision, not the attention
SDPA = "scaled_dot_product_attention"


def judge(case: Case) -> Outcome:
    """Fires on plain attention that the frames show; suspects it, or abstains, where only a trace could tell."""
    for one in accelerated(case):
        seen, card = one.profile, one.card
        trace = trace_of(case, one.rank.pid)
        if trace is not None and (trace.math_attention_share or 0.0) >= TRACED_SHARE:
            return _traced(case, one, trace)
        if card.dram is None or (card.tensor or 0.0) > TENSOR or seen.samples < FEW_SAMPLES:
            continue
        share = seen.share("eager_attention")
        if share >= EAGER_SHARE and card.dram >= MEMORY:
            return _proved(case, one, share)
        calls = seen.share_where(partial(_attends, case))
        if calls < ATTENDS:
            continue
        if trace is not None and trace.families.get("attention", 0.0) > 0:
            continue  # the trace shows a fused kernel
        softmax = card.dram >= PLAIN_MEMORY and card.dram + (card.fp32 or 0.0) >= PLAIN_SOFTMAX
        plain = (card.tensor or 0.0) < PLAIN_TENSOR and softmax
        if plain and (card.graphics or 0.0) >= BUSY and TENSOR_SEEN < (card.tensor or 0.0):
            return _suspected(case, one, calls)
        return _only_a_trace() if card.dram >= MEMORY else None
    return None


def _attends(case: Case, stack: Stack) -> bool:
    """Whether a stack is at attention: in a library's module for it, or at a line of the program that calls torch's."""
    if any_tag(tags(stack), "attention"):
        return True
    frame = user_frame(stack)
    seen = case.history.latest(SourceLine, frame.file, frame.line) if frame is not None else None
    return seen is not None and any(call.endswith(SDPA) for call in seen.reading.calls)


def _proved(case: Case, one: Accelerated, share: float) -> Outcome:
    frame = show(one.profile.top_line(lambda stack: "eager_attention" in tags(stack)))
    dram = one.card.dram or 0.0
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=0.5 * dram,
        explains=0.6 * dram,  # of what memory_bound_gpu sees, this is the reason
        confidence=PROVED,
        frame=frame,
        summary=f"attention is computed the plain way at {frame}: every pair of positions is written to memory",
        evidence=(
            case.saw(
                "stack",
                f"pid {one.rank.pid}",
                "is in plain attention",
                f"{share:.0%} of {one.profile.samples} samples",
                "0 %",
            ),
            monitored(case, one, "memory busy, tensor cores not", "the other way round"),
        ),
        alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the frames name plain attention"),),
        next=('attn_implementation="sdpa" or "flash_attention_2" when the model is loaded',),
    )


def _traced(case: Case, one: Accelerated, trace: TorchTrace) -> Outcome:
    share = trace.math_attention_share or 0.0
    lost = min(MOST_LOST, WITH_BACKWARD * share)
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        confidence=TRACED,
        summary=f"attention falls back to its plain form (SDPA's math kernel): its forward pass alone takes {share:.0%} of the "
        "card's time in a trace",
        evidence=(
            case.saw(
                WITNESS,
                f"pid {one.rank.pid}",
                "scaled_dot_product_attention runs its plain implementation",
                f"{trace.math_attention_calls} times in {trace.window_seconds:.2g} s, {share:.0%} of the card's time",
                "one fused kernel a layer",
            ),
        ),
        alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the trace names plain attention"),),
        next=(
            "under torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) torch says why the fused kernel is refused",
        ),
    )


def _suspected(case: Case, one: Accelerated, calls: float) -> Outcome:
    frame = show(one.profile.top_line(partial(_attends, case)))
    card = one.card
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=0.5 * ((card.dram or 0.0) + (card.fp32 or 0.0)),
        confidence=SUSPECTED,
        frame=frame,
        summary=f"attention at {frame} seems to fall back to its plain form: the card is full, and its tensor cores are used "
        f"only {card.tensor or 0:.0%}, beside {card.dram or 0:.0%} of its memory and {card.fp32 or 0:.0%} of its fp32 pipe",
        evidence=(
            case.saw("stack", f"pid {one.rank.pid}", f"calls attention at {frame}", f"{calls:.0%} of the samples"),
            monitored(case, one, "full, and the tensor cores are not", "tensor 30 % and more with fused kernels"),
            case.saw(card.source, name_of(case.history, card.uuid), "fp32 pipe", f"{card.fp32 or 0:.0%}", "below 10 %"),
        ),
        alternatives=(
            Alternative(cause="wrong_precision", refuted_by="the tensor cores do some of the products"),
            Alternative(cause="memory_bound_gpu", refuted_by=f"memory is used only {card.dram or 0:.0%}"),
        ),
        next=("perfwatch capture torch: softmax and bmm kernels instead of one fused kernel",),
    )


def _only_a_trace() -> Abstention:
    return Abstention(
        cause=CAUSE.name,
        missing=(
            Missing(
                witness="kernel_trace",
                reason="which attention kernel torch chose shows in no counter and no stack",
                advice="perfwatch capture torch names it (plain: softmax and bmm kernels)",
            ),
        ),
    )
