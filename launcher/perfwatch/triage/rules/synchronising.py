"""The training thread waits for the GPU again and again, and each time the card runs dry."""

from functools import partial

from perfwatch.triage.cards.accelerated import (
    FEW_SAMPLES,
    accelerated,
    has_gaps,
    line_of,
    monitored,
    slow_on_gpu,
    sync_share,
)
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.slowness import LOST_SHARE, certainty
from perfwatch.triage.waits.devices import in_sync
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import GpuSample, SourceLine, Stack

CAUSE = Cause("synchronising", "slow", "user_code", (Stack, SourceLine, GpuSample))

SYNCS = 0.1  # of the samples; a loop that reads its loss every tenth step stays below 0.05 where the card is not the bottleneck
WAITS_FOR_DATA = 0.3  # of the samples: then the card waits for that


def judge(case: Case) -> Outcome:
    """Fires on a thread that waits for a card which is not busy."""
    for one in accelerated(case):
        seen = one.profile
        syncs = sync_share(case, seen)
        gaps = one.card.kind == "wait" or has_gaps(one.card)
        if not gaps or one.card.waiting < LOST_SHARE or seen.samples < FEW_SAMPLES or syncs < SYNCS:
            continue
        others = seen.share("loader_wait", "fetch", "save", "collective")
        lost = min(one.card.waiting, 1.0 - others)
        if others > WAITS_FOR_DATA:
            continue
        frame = line_of(seen, partial(in_sync, case.history))
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=lost,
            frame=frame,
            confidence=certainty(min(lost, 2 * syncs)),
            summary=f"the training thread waits for the GPU at {frame} again and again ({syncs:.0%} of its time), "
            f"and between two waits the card runs dry: it has nothing to do {one.card.waiting:.0%} of the time",
            evidence=(
                case.saw(
                    "stack",
                    f"pid {one.rank.pid}",
                    f"waits for the device at {frame}",
                    f"{syncs:.0%} of {seen.samples} samples",
                    "below 5 %, or a card that is busy meanwhile",
                ),
                monitored(case, one, "kernels come and go, with gaps", "a kernel resident all the time"),
            ),
            alternatives=(
                Alternative(
                    cause="gpu_bound", refuted_by=f"the card has nothing to do {one.card.waiting:.0%} of the time"
                ),
            ),
            next=(f"keep the value at {frame} on the device, and read it every hundredth step",),
        )
    return None


RULES = (Rule(CAUSE, judge),)
