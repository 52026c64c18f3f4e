"""Workers that lock one file after the other: while one has it the others wait, however many there are."""

from dataclasses import dataclass

from perfwatch.probes.readings import Descriptor
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.starving import Starving, starving
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.verdict import Alternative, Finding

FEW_SIGHTINGS = 4  # of a worker that finds the file locked by another one
HOLDERS = 2  # different ones: of a single holder that keeps it nobody says that it is taken in turn
CEILING = 0.9


@dataclass(frozen=True)
class Turns:
    """``waiting``: how many of the workers found it locked by another one; ``holders``: who had it meanwhile."""

    path: str
    sightings: int
    waiting: int
    holders: tuple[int, ...]


def turns(case: Case, found: Starving) -> Turns | None:
    """The file that the workers of a rank were seen to lock in turn; None where there is none."""
    pids = {pid for pid, _ in found.producers}
    seen: dict[str, list[Descriptor]] = {}
    for pid in pids:
        for key in case.history.of(Descriptor, pid):
            for one in case.history.series(Descriptor, *key, seconds=WINDOW_SECONDS):
                if pids.intersection(one.reading.lock_holders) - {pid}:
                    seen.setdefault(one.reading.target, []).append(one.reading)
    if not seen:
        return None
    path, looks = max(seen.items(), key=lambda item: len(item[1]))
    holders = tuple(sorted(pids.intersection(pid for one in looks for pid in one.lock_holders)))
    waiting = len({one.pid for one in looks})
    enough = len(looks) >= FEW_SIGHTINGS and len(holders) >= HOLDERS and 2 * waiting > len(pids)
    return Turns(path, len(looks), waiting, holders) if enough else None


def workers_in_turn(case: Case, cause: Cause) -> Finding | None:
    """A rank waits for data whose makers wait for each other at a file lock."""
    found = starving(case)
    locked = turns(case, found) if found is not None else None
    if found is None or locked is None:
        return None
    what = f"waiting in turn for a lock on {locked.path}, which one of them has at a time"
    named = ", ".join(map(str, locked.holders))
    return found.finding(
        case,
        cause,
        ceiling=CEILING,
        summary=found.summary(case, what),
        evidence=(
            case.saw(
                "lock", locked.path, "is locked by another worker", f"{locked.sightings} times, by pid {named}", "free"
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="the workers neither compute nor read"),),
        next=("lock for as long as it takes to write, and read before: more workers make it no faster",),
    )
