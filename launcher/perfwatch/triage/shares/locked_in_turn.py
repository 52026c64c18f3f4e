"""Workers that take one lock after the other, of a file or in memory: while one has it the others wait, however many there are."""

from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.starving import Starving, starving
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.words.frames import any_tag, inner_tags, show
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes.readings import Descriptor, Stack

FEW_SIGHTINGS = 4  # of workers that find it locked by another one
HOLDERS = 2  # different ones: of a single holder that keeps it nobody says that it is taken in turn
WAITING_SHARE = (
    0.3  # of the looks at workers that have something to do; two that share one lock alone wait half of the time
)
CEILING = 0.9


@dataclass(frozen=True)
class Turns:
    """``waiting``: how many of the workers found it locked by another one; ``holders``: who had it meanwhile."""

    lock: str
    sightings: int
    waiting: int
    holders: tuple[int, ...]
    next: str


def turns(case: Case, found: Starving) -> Turns | None:
    """The lock that the workers of a rank were seen to take in turn; None where there is none."""
    return at_lock(case, found) or case.history.once(("turns at a file",), lambda: _at_file(case, found))


def at_lock(case: Case, found: Starving) -> Turns | None:
    """A lock between processes, at one line of the program's."""
    return case.history.once(("turns at a lock",), lambda: _at_lock(case, found))


def _at_lock(case: Case, found: Starving) -> Turns | None:
    seen = {pid: busy for pid, tid, busy in found.profiles(case) if pid == tid}
    waits = {pid: busy.share_where(_waits) * busy.samples for pid, busy in seen.items()}
    both = tuple(sorted(pid for pid, busy in seen.items() if 0 < waits[pid] < busy.samples))
    looks = sum(busy.samples for busy in seen.values())
    if len(both) < HOLDERS or sum(waits.values()) < max(FEW_SIGHTINGS, WAITING_SHARE * looks):
        return None
    line = show(seen[max(waits, key=lambda pid: waits[pid])].top_line(_waits))
    return Turns(
        f"the lock between processes at {line}",
        round(sum(waits.values())),
        len(both),
        both,
        f"do the slow part outside of the lock at {line}: more workers make it no faster",
    )


def _waits(stack: Stack) -> bool:
    inner = inner_tags(stack)
    if "mp_lock" not in inner or any_tag(inner, "mp_queue_get", "mp_queue_put"):
        return False
    return stack.frames[0].function.rpartition(".")[2] in ("__enter__", "acquire")


def _at_file(case: Case, found: Starving) -> Turns | None:
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
    if len(looks) < FEW_SIGHTINGS or len(holders) < HOLDERS or 2 * waiting <= len(pids):
        return None
    advice = "lock for as long as it takes to write, and read before: more workers make it no faster"
    return Turns(f"a lock on {path}", len(looks), waiting, holders, advice)


def workers_in_turn(case: Case, cause: Cause) -> Finding | None:
    """A rank waits for data whose makers wait for each other at a lock."""
    found = starving(case)
    locked = turns(case, found) if found is not None else None
    if found is None or locked is None:
        return None
    named = ", ".join(map(str, locked.holders))
    return found.finding(
        case,
        cause,
        ceiling=CEILING,
        summary=found.summary(case, f"waiting in turn for {locked.lock}, which one of them has at a time"),
        evidence=(
            case.saw(
                "lock", locked.lock, "is had by another worker", f"{locked.sightings} times, by pid {named}", "free"
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="most of the workers wait, one works"),),
        next=(locked.next,),
    )
