"""A child that naps, and all that it has started with it: it may wait for something that comes in the end, or never.

A program that naps itself uses nothing. A shell cannot: it starts ``sleep``, and for each look ``grep``, ``test`` or ``curl``.
"""

from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE, STIRS_SHARE, USAGE_SECONDS
from perfwatch.triage.moving.work import work_of
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import silence
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Process, ProcessUsage

NAPS = "sleep"  # the program by which a script rests
BRIEF_SECONDS = 5.0  # of age: an older one that is no nap has something to do of its own
ENOUGH_SEEN = 5  # brief programs, in looks a second apart
MOSTLY = 0.7  # of those: between two tries of a service it sleeps longer than it tries
SEEN_SECONDS = 60.0


@dataclass(frozen=True)
class Rest:
    """What a child at rest does, as the end of a sentence (empty: the chain says it), and what shows it."""

    does: str
    evidence: tuple[Evidence, ...]


def at_rest(case: Case, chain: Chain, child: Member) -> Rest | None:
    """How a child that another process waits for rests, with all that it started; None where any of them may be at work."""
    alive = _alive(case, child)
    if chain.end.kind == "sleep" and all(_is_idle(case, one.pid) for one in alive):
        return Rest("", _evidence(case, chain, child, "no CPU time, 0 bytes"))
    names = _programs(case, child, alive)
    if not _are_mostly_naps(names):
        return None
    said = f"{names.count(NAPS)} of the {len(names)} programs that were met are {NAPS}, and what they used is next to nothing"
    return Rest("starts brief programs and sleeps in between", _evidence(case, chain, child, said))


def polls_by_programs(case: Case, child: Member) -> bool:
    """True if a script does nothing but start brief programs, most of which are sleeps."""
    return _are_mostly_naps(_programs(case, child, _alive(case, child)))


def _alive(case: Case, child: Member) -> list[Member]:
    """A child, and all that it has started."""
    return [
        m for m in case.job.members.values() if m.alive and (m.pid == child.pid or case.job.branch(m.pid, child.pid))
    ]


def _programs(case: Case, child: Member, alive: list[Member]) -> list[str]:
    """The brief programs that a script starts; none if it, or anything that it has started, does more."""
    lasting = [one for one in alive if not _is_new(case, one)]
    if child not in lasting or not all(_starts_others(case, one.pid) for one in lasting):
        return []
    return _started(case, frozenset(one.pid for one in lasting))


def _are_mostly_naps(names: list[str]) -> bool:
    return len(names) >= ENOUGH_SEEN and names.count(NAPS) >= MOSTLY * len(names)


def _evidence(case: Case, chain: Chain, child: Member, said: str) -> tuple[Evidence, ...]:
    pid, silent = chain.start.pid, f"{silence(case.history, chain.start) or 0.0:.0f} s"
    return (
        case.saw("thread", f"pid {pid}", "the training thread has not run", silent, "runs within each step"),
        case.saw("usage", f"pid {child.pid}", "works at nothing", f"{said}, in all that it started", "either"),
    )


def _is_idle(case: Case, pid: int) -> bool:
    """Whether it was watched, uses no CPU time and not a byte, and is not new."""
    used = case.history.growth(ProcessUsage, pid, of=lambda usage: usage.cpu_seconds)
    moved = case.history.growth(
        ProcessUsage, pid, of=lambda usage: (usage.read_chars or 0) + (usage.written_chars or 0)
    )
    seen = case.history.latest(Process, pid)
    if used is None or moved is None or seen is None or used[1] < USAGE_SECONDS:
        return False
    return used[0] <= STIRS_SHARE * used[1] and moved[0] == 0 and _age(case, seen) >= temporal(case)


def _starts_others(case: Case, pid: int) -> bool:
    """Whether it was watched, and uses no more than what it takes to start brief programs."""
    used = case.history.growth(ProcessUsage, pid, of=lambda usage: usage.cpu_seconds)
    seen = case.history.latest(Process, pid)
    if used is None or seen is None or used[1] < USAGE_SECONDS:
        return False
    return work_of(case.history, pid).sign < SIGN_OF_LIFE and not seen.reading.python


def _is_new(case: Case, member: Member) -> bool:
    seen = case.history.latest(Process, member.pid)
    return seen is not None and (seen.reading.name == NAPS or _age(case, seen) < BRIEF_SECONDS)


def _started(case: Case, parents: frozenset[int]) -> list[str]:
    """Names of the programs that were met lately as children of these, but for those that last themselves."""
    pids = (key[0] for key in case.history.entities(Process) if key[0] not in parents)
    seen = (one for pid in pids if (one := case.history.latest(Process, pid)) is not None)
    return [one.reading.name for one in seen if one.reading.parent_pid in parents and one.at >= case.at - SEEN_SECONDS]


def _age(case: Case, seen: Seen[Process]) -> float:
    return (seen.reading.age_seconds or 0.0) + case.at - seen.at
