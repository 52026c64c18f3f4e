"""Kernels are tried out, to find the fastest way to run an operation."""

from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.given_back import WINDOW_SECONDS, falls_of, in_convolution, memory_used, tries_convolutions
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.debugging import mode_on
from perfwatch.triage.slowness import LOST_SHARE, certainty
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("autotuning", "busy", "user_code", (Thread, Stack))

TUNING_SHARE = 0.4  # of samples; the rest compiles the next candidate
SEEN = 0.9
INFERRED, TOLD = 0.85, 0.95  # that cuDNN searches: from what it leaves behind, and by the agent as well


def judge(case: Case) -> Outcome:
    """Fires on a rank that tries out kernels and makes no step; or that makes them, and tries anew in each."""
    for phase in phases(case):
        share = phase.profile.share("autotune")
        if share < TUNING_SHARE or (phase.runs < MOVES_SHARE and phase.motion.distinct <= 1):
            continue
        cards = regimes(case.history, phase.rank.pid)
        evidence = [
            case.saw(
                "stack",
                f"pid {phase.rank.pid}",
                "is in the autotuner",
                f"{share:.0%} of {phase.profile.samples} samples",
                "training code",
            )
        ]
        if cards:
            name = name_of(case.history, cards[0].uuid)
            evidence.append(case.saw(cards[0].source, name, "runs the candidates", cards[0].shown(), "busy meanwhile"))
        return phase.finding(CAUSE, "kernels are tried out before their first use", SEEN, tuple(evidence))
    found = (one for one in accelerated(case) if one.card.kind == "wait" and one.card.waiting >= LOST_SHARE)
    return next((_again(case, one) for one in found if tries_convolutions(case, one)), None)


def _again(case: Case, one: Accelerated) -> Outcome:
    frame, name = show(one.profile.top_line(in_convolution)), name_of(case.history, one.card.uuid)
    forward, convolving = one.profile.share("forward", "convolution"), one.profile.share_where(in_convolution)
    lost = min(one.card.waiting, convolving + one.profile.share("backward"))
    told = mode_on(case, one.rank, "cudnn_benchmark")
    falls = f"{falls_of(memory_used(case, one))} times in {WINDOW_SECONDS:.0f} s"
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        frame=frame,
        confidence=min(TOLD if told else INFERRED, certainty(lost)),
        summary=f"cuDNN tries out its kernels again and again, for inputs of ever new sizes: the forward pass stands in convolutions, "
        f"mostly at {frame}, {name} has no kernel to run {one.card.waiting:.0%} of the time, and its memory falls {falls} though "
        "no line empties the cache",
        evidence=(
            case.saw(
                "stack",
                f"pid {one.rank.pid}",
                "is in a convolution, of the samples in the forward pass",
                f"{convolving / forward:.0%} of {forward * one.profile.samples:.0f} samples",
                "a third or less",
            ),
            case.saw("nvml", name, "memory falls and rises, far from full", falls, "constant"),
            *([case.saw("agent", f"pid {one.rank.pid}", "cudnn.benchmark", "on", "off")] if told else []),
            monitored(case, one, "waits between trials", "a kernel resident all the time"),
        ),
        alternatives=(
            Alternative(cause="allocator_thrash", refuted_by="no line empties the cache, and the card is not full"),
            Alternative(
                cause="host_bound_python", refuted_by="nothing but convolutions takes time in the forward pass"
            ),
        ),
        next=("torch.backends.cudnn.benchmark = False, or inputs padded to a few sizes: it searches once for each",),
    )


RULES = (Rule(CAUSE, judge),)
