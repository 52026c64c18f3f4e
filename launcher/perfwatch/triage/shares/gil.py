"""Whether a training thread that goes on spends its time asking for the GIL, and which threads own it meanwhile.

The kernel tells the waits (CPython asks for the GIL in a futex with a timeout of 5 ms, again and again), only a dump of all
stacks tells the owner. Of a thread that stands the chains tell: see ``gil_holder``.
"""

from collections import Counter
from dataclasses import dataclass

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.own_work import rests, takes_a_lock
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.slowness import SURE_SHARE, WINDOW_SECONDS, Line, certainty, slow
from perfwatch.triage.waits.node import culprit, node_of
from perfwatch.triage.waits.threads import GIL_WAIT_SECONDS
from perfwatch.triage.words.frames import any_tag, show, tags
from perfwatch.verdict import Abstention, Evidence, Missing, Outcome
from perfwatch_probes.readings import Stack, Thread

OFTEN_PER_SECOND = 60.0  # measured 216 to 256 of a thread that gets a turn now and then, 193 of one that gets none
FEW_LOOKS = 4
FEW_ASKING = 3  # looks that found it asking: it may be told once by chance
FEW_DUMPS = 3
GIL_SHARE = 0.3  # of its time; beside one thread that computes in Python a training thread that does so too loses half
# Of the dumps that saw an owner: a training thread that has the GIL itself most of the time only shares it.
HELD_SHARE = 0.6
OFTEN_HELD = 2  # of them; a dump may fall between two owners
CEILING = 0.93  # the owner is seen, in a handful of dumps
KEPT = (
    "the training thread waits {lost:.0%} of the time for the GIL, which {holders}",
    (),
    (("held_gil", "the training thread gets its turn: it runs {runs:.0%} of the time"),),
    (
        "move {moves} to a process of its own, let it sleep between its rounds, or do it in native code that releases the GIL",
        "python3.13t has no GIL, if every extension of the program is built for it",
    ),
)
OWN_WAITS = tuple(
    "loader_wait thread_wait queue_get mp_queue_get pool_wait futures_wait mp_receive collective rendezvous".split()
)


@dataclass(frozen=True)
class GilWait:
    """How a training thread waits for the GIL. All shares are of its time."""

    share: float
    run_share: float
    switches_per_second: float
    asking: int  # looks that found it in such a wait
    looks: int


@dataclass(frozen=True)
class GilOwners:
    """Who owned the GIL in the dumps that tell it."""

    dumps: int
    own: int  # of them: the training thread
    others: tuple[tuple[int, int], ...]  # (thread, dumps), the one that owned it most often first

    @property
    def held(self) -> int:
        """In how many dumps some other thread had it."""
        return sum(times for _, times in self.others)


def gil_wait(case: Case, rank: Member) -> GilWait | None:
    """How the training thread waits for the GIL; None where it was not seen to, or not looked at often enough.

    What it neither runs nor waits for a CPU it sleeps, and of that as much is for the GIL as of the looks that found it asleep.
    A loop of the program's own that polls with so short a timeout looks the same to the kernel: its line tells. A timeout that could not
    be read says nothing: by then the thread may have gone on.
    """
    tid = case.progress[rank.pid].thread
    moved = motion(case.history, rank.pid, tid, WINDOW_SECONDS)
    looks = [one.reading for one in case.history.series(Thread, rank.pid, tid, seconds=WINDOW_SECONDS)]
    asleep = [one for one in looks if one.state not in ("R", "S") or (one.state == "S" and one.wait is not None)]
    timed = [one.wait for one in asleep if one.wait is not None and one.wait.kind == "futex" and not one.wait.forever]
    left = [one.remaining_seconds for one in timed if one.remaining_seconds is not None]
    asking, known = sum(one <= GIL_WAIT_SECONDS for one in left), len(asleep) - len(timed) + len(left)
    often = moved.switches_per_second is not None and moved.switches_per_second >= OFTEN_PER_SECOND
    if moved.run_share is None or len(looks) < FEW_LOOKS or asking < FEW_ASKING or not often:
        return None
    elsewhere = profile(case.history, rank.pid, tid, WINDOW_SECONDS).share_where(lambda stack: _waits(case, stack))
    idle = max(0.0, 1.0 - moved.run_share - (moved.delay_share or 0.0))
    share = min(idle * asking / known, 1.0 - elsewhere)
    return GilWait(share, moved.run_share, moved.switches_per_second or 0.0, asking, len(looks))


def gil_owners(case: Case, rank: Member) -> GilOwners | None:
    """Who owned the GIL lately; None where too few dumps tell. Each dump shows every thread, and equal ones are one record."""
    seen_in: Counter[int] = Counter()
    owned: Counter[int] = Counter()
    for pid, tid in case.history.of(Stack, rank.pid):
        for seen in case.history.series(Stack, pid, tid, seconds=WINDOW_SECONDS):
            if seen.reading.owns_gil is not None:
                seen_in[tid] += seen.reading.samples
                owned[tid] += seen.reading.samples if seen.reading.owns_gil else 0
    dumps = max(seen_in.values(), default=0)
    if dumps < FEW_DUMPS:
        return None
    own = owned.pop(case.progress[rank.pid].thread, 0)
    return GilOwners(dumps, own, tuple(one for one in owned.most_common() if one[1]))


def kept_from_gil(case: Case, cause: Cause) -> Outcome:
    """A training thread that goes on, and waits most of its time for the GIL that other threads of its process own."""
    moving = (rank for rank in case.ranks if case.progress[rank.pid].kind == "moving")
    waiting = [(rank, wait) for rank in moving if (wait := gil_wait(case, rank)) and wait.share >= GIL_SHARE]
    told = [(rank, wait, owners) for rank, wait in waiting if (owners := gil_owners(case, rank)) is not None]
    held = [one for one in told if one[2].held >= max(OFTEN_HELD, HELD_SHARE * (one[2].held + one[2].own))]
    if waiting and not told:
        reason = f"fewer than {FEW_DUMPS} dumps show which thread owns the GIL, for which the training thread waits"
        return Abstention(cause=cause.name, missing=(Missing(witness="stack", reason=reason),))
    if not held:
        return None
    rank, wait, owners = max(held, key=lambda one: one[1].share)
    tid, _ = owners.others[0]
    node = node_of(case.history, case.job, rank.pid, tid)
    line = show(profile(case.history, rank.pid, tid, WINDOW_SECONDS).top_line() or node.frame)
    name = f"thread {node.name or tid}"
    at = line or f"what {name} computes"
    more = len(owners.others) - 1
    beside = f" and {more} other{'' if more == 1 else 's'}" if more else ""
    has = "has" if not more else "have"
    return slow(
        case,
        Line(cause, *KEPT),
        rank,
        wait.share,
        explains=1.0 if wait.share >= SURE_SHARE else wait.share,  # whatever line it is at takes the longer for it
        confidence=min(CEILING, certainty(wait.share)),
        before=_evidence(case, rank, wait, owners, name),
        culprits=(msgspec.structs.replace(culprit(node), frame=line),),
        holders=f"{name}{beside} {has}{f', mostly at {line}' if line else ''}",
        runs=wait.run_share,
        moves=at,
    )


def _evidence(case: Case, rank: Member, wait: GilWait, owners: GilOwners, name: str) -> tuple[Evidence, ...]:
    own = f"pid {rank.pid} thread {case.progress[rank.pid].thread}"
    tid, times = owners.others[0]
    runs = motion(case.history, rank.pid, tid, WINDOW_SECONDS).run_share
    owned = f"in {times} of {owners.dumps} dumps, the training thread in {owners.own}"
    asks = f"in {wait.asking} of {wait.looks} samples, {wait.switches_per_second:.0f} waits a second, runs {wait.run_share:.0%} of a core"
    found = (
        case.saw("stack", f"pid {rank.pid} {name}", "owns the GIL", owned, "the training thread in most"),
        case.saw("thread", own, "asks for the GIL", asks, "never, or now and then"),
    )
    if runs is None:
        return found
    return (*found, case.saw("thread", f"pid {rank.pid} thread {tid}", "runs meanwhile", f"{runs:.0%} of a core"))


def _waits(case: Case, stack: Stack) -> bool:
    """Whether it waits, or sleeps, for something of the program's own."""
    return any_tag(tags(stack), *OWN_WAITS) or rests(case.history, stack) or takes_a_lock(case.history, stack)
