"""The training thread prepares its own data.

What it means
    With ``num_workers=0`` (or a loop without a DataLoader) reading and transforming happen between steps, one after the other.

How it is recognised
    The training thread itself is inside the loader's fetch (or data set code below it) for a good part of its time, and there
    are no workers.

What it is mistaken for
    Training code that is slow: its frames are not below the loader's.

What to do next
    ``DataLoader(num_workers=...)``.
"""

from perfwatch.probes.readings import Stack
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show, tags
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import slow, worst
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("serial_loading", "slow", "data", (Stack,))

LOADER = frozenset({"fetch", "collate"})


def judge(case: Case) -> Outcome:
    """Fires when the training thread spends its time below the loader's fetch."""
    found = worst(case, lambda rank, seen: seen.share(*LOADER))
    if found is None:
        return None
    rank, seen, lost = found
    frame = seen.top_line(lambda stack: not tags(stack).isdisjoint(LOADER))
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        summary=f"the training thread prepares its own data {lost:.0%} of the time, mostly at {show(frame)}: no worker does it",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "is inside the loader's fetch",
                f"{lost:.0%} of {seen.samples} samples",
                "0 % with workers",
            ),
        ),
        alternatives=(
            Alternative(
                cause="starved_by_transforms", refuted_by="there is no worker: the training thread does it itself"
            ),
        ),
        next=("DataLoader(num_workers=4) moves this out of the training thread",),
    )
