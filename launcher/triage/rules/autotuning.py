"""Busy: kernels are tried out, to find the fastest way to run an operation.

What it means
    Triton's autotuner, inductor's ``max-autotune`` or another benchmark runs each candidate many times before the first real
    use. The card is busy, steps are not made.

How it is recognised
    The training thread makes no step, and its samples are in the autotuner's own functions or in the benchmark that it calls.

What it is mistaken for
    ``compiling``: there the CPU works and the card is idle. ``stuck_kernel``: the candidates come to an end, one after the
    other. cuDNN tries its kernels in native code, which no stack shows.

What to do next
    Wait; keep the results between runs (TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR), or give the autotuner fewer ways.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.case import Case
from perfwatch.triage.gpu import name_of, regimes
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Outcome

CAUSE = Cause("autotuning", "busy", "user_code", (Thread, Stack))

TUNING_SHARE = 0.4  # of samples; the rest compiles the next candidate
SEEN = 0.9


def judge(case: Case) -> Outcome:
    """Fires on a rank that tries out kernels and makes no step."""
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
    return None
