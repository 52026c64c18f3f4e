"""Attention is computed the plain way, which writes out every pair of positions."""

from functools import partial

from perfwatch.text import short_time
from perfwatch.triage.cards.accelerated import FEW_SAMPLES, Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.plain_attention import attends, exponentiates, seen_from_outside
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.traced import WITNESS, trace_of
from perfwatch.triage.words.frames import show, tags
from perfwatch.verdict import Abstention, Alternative, Missing, Outcome
from perfwatch_probes.readings import GpuActivity, Stack, TorchTrace

CAUSE = Cause("slow_attention_fallback", "slow", "user_code", (GpuActivity, Stack))

EAGER_SHARE = 0.1  # of the samples in a library's plain attention
MEMORY, TENSOR = 0.4, 0.3  # traffic above and tensor use below which attention may be what moves the bytes
ATTENDS = 0.02  # of the samples: with a full queue the host is seldom seen at the call
PROVED, SUSPECTED, TRACED = 0.85, 0.62, 0.92
TRACED_SHARE = 0.05  # of the card's time, in the forward pass alone
WITH_BACKWARD, MOST_LOST = 2.5, 0.8  # the backward pass of attention takes about one and a half times its forward


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
        calls = seen.share_where(partial(attends, case))
        if calls < ATTENDS:
            continue
        if trace is not None and trace.families.get("attention", 0.0) > 0:
            continue  # the trace shows a fused kernel
        if exponentiates(card):
            return _suspected(case, one, calls)
        return _only_a_trace() if card.dram >= MEMORY else None
    return None


def _proved(case: Case, one: Accelerated, share: float) -> Outcome:
    frame = show(one.profile.top_line(lambda stack: "eager_attention" in tags(stack)))
    dram = one.card.dram or 0.0
    samples = f"{share:.0%} of {one.profile.samples} samples"
    saw = case.saw("stack", f"pid {one.rank.pid}", "is in plain attention", samples, "0 %")
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=0.5 * dram,
        explains=0.6 * dram,  # of what memory_bound_gpu sees, this is the reason
        confidence=PROVED,
        frame=frame,
        summary=f"attention is computed the plain way at {frame}: every pair of positions is written to memory",
        evidence=(saw, monitored(case, one, "memory busy, tensor cores not", "the other way round")),
        alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the frames name plain attention"),),
        next=('attn_implementation="sdpa" or "flash_attention_2" when the model is loaded',),
    )


def _traced(case: Case, one: Accelerated, trace: TorchTrace) -> Outcome:
    share = trace.math_attention_share or 0.0
    lost = min(MOST_LOST, WITH_BACKWARD * share)
    frame = show(one.profile.top_line(partial(attends, case)))  # with a full queue nobody may have been seen there
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        confidence=TRACED,
        frame=frame,
        summary=f"attention falls back to its plain form (SDPA's math kernel): its forward pass alone takes {share:.0%} of the "
        "card's time in a trace",
        evidence=(
            case.saw(
                WITNESS,
                f"pid {one.rank.pid}",
                "scaled_dot_product_attention runs its plain implementation",
                f"{trace.math_attention_calls} times in {short_time(trace.window_seconds)}, {share:.0%} of the card's time",
                "one fused kernel a layer",
            ),
        ),
        alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the trace names plain attention"),),
        next=(
            "under torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) torch says why the fused kernel is refused",
        ),
    )


def _suspected(case: Case, one: Accelerated, calls: float) -> Outcome:
    frame = show(one.profile.top_line(partial(attends, case)))
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
        evidence=seen_from_outside(case, one, frame, calls),
        alternatives=(
            Alternative(cause="wrong_precision", refuted_by="the tensor cores do some of the products"),
            Alternative(cause="memory_bound_gpu", refuted_by=f"memory is used only {card.dram or 0:.0%}"),
        ),
        next=("perfwatch capture torch: softmax and bmm kernels instead of one fused kernel",),
    )


def _only_a_trace() -> Abstention:
    reason = "which attention kernel torch chose shows in no counter and no stack"
    advice = "perfwatch capture torch names it (plain: softmax and bmm kernels)"
    return Abstention(cause=CAUSE.name, missing=(Missing(witness="kernel_trace", reason=reason, advice=advice),))


RULES = (Rule(CAUSE, judge),)
