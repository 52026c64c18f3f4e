"""The GPU waits for Python: kernels are launched more slowly than the card runs them.

What it means
    Many small operations: each costs the host some ten microseconds in Python and in torch's dispatcher, and the card less. It
    idles between kernels, and a faster card would change nothing.

How it is recognised
    On the card a kernel is resident only a part of the time; the training thread runs at a full core, in code that launches
    kernels, and hardly ever waits: not for data, not for the card.

What it is mistaken for
    ``synchronising``: the thread waits for the card again and again, which then runs dry. ``starved_by_transforms``: it waits
    for data. ``contended_cpu``: it wants to run and may not. A larger batch of the same many kernels is not host bound.

What to do next
    Fewer, larger launches: ``torch.compile(mode="reduce-overhead")`` or CUDA graphs, a fused optimizer, a larger batch.
"""

from perfwatch.probes.readings import GpuSample, Stack, Thread
from perfwatch.triage.cards.accelerated import (
    FEW_SAMPLES,
    accelerated,
    launching_share,
    monitored,
    slow_on_gpu,
    sync_share,
)
from perfwatch.triage.cards.links import traffic_mib_per_second
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.saving import in_save
from perfwatch.triage.slowness import LOST_SHARE, certainty
from perfwatch.triage.verdict import Alternative, Outcome
from perfwatch.triage.words.frames import show

CAUSE = Cause("host_bound_python", "slow", "user_code", (Thread, Stack, GpuSample))

RUNS = 0.7  # of a core, waiting for one included
LAUNCHING = 0.5  # of the samples
SYNCS = 0.1  # of the samples: above it the waits for the card are the better explanation
COPIES_MIB_PER_SECOND = 1024.0  # of launches alone there are some hundred
COPIES_TOO = 0.7  # confidence where so much is copied that this may be what the host does
RESIDUE = 0.5  # every host-side cause leaves the card waiting: one that explains half as much is the better answer


def judge(case: Case) -> Outcome:
    """Fires on a card that waits while the host runs as fast as it can."""
    for one in accelerated(case):
        seen = one.profile
        if one.card.kind != "wait" or one.card.waiting < LOST_SHARE or seen.samples < FEW_SAMPLES:
            continue
        launching, syncs = launching_share(case, seen), sync_share(case, seen)
        if one.runs < RUNS or launching < LAUNCHING or syncs >= SYNCS:
            continue
        lost = min(one.card.waiting, launching)
        moved = traffic_mib_per_second(case.history, one.card) or 0.0
        frame = show(seen.top_line(lambda stack: not in_save(case, stack)) or seen.top_line())
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=lost,
            explains=RESIDUE * lost,
            confidence=min(certainty(lost), COPIES_TOO if moved >= COPIES_MIB_PER_SECOND else 1.0),
            frame=frame,
            summary=f"the GPU waits for the host {one.card.waiting:.0%} of the time: Python launches kernels more slowly than "
            f"the card runs them, mostly at {frame}",
            evidence=(
                monitored(case, one, "waits between kernels", "a kernel resident all the time"),
                case.saw(
                    "schedstat",
                    f"pid {one.rank.pid}",
                    "the training thread runs",
                    f"{one.runs:.0%} of a core",
                    "waits for the GPU",
                ),
                case.saw(
                    "stack",
                    f"pid {one.rank.pid}",
                    "launches, and waits neither for data nor for the card",
                    f"{launching:.0%} of {seen.samples} samples, {syncs:.0%} in synchronisations",
                    "a part of the time in synchronisations",
                ),
            ),
            alternatives=(
                Alternative(cause="synchronising", refuted_by=f"only {syncs:.0%} of the samples wait for the card"),
            ),
            next=(
                'fewer, larger launches: torch.compile(mode="reduce-overhead"), CUDA graphs, fused=True in the optimizer',
            ),
        )
    return None
