"""A thread, or a child and all that it has started, that naps and asks again and again: what it waits for may come in the end, or never.

A program that naps itself uses nothing. A shell cannot: it starts ``sleep``, and for each look ``grep``, ``test`` or ``curl``.
"""

from dataclasses import dataclass

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE, STIRS_SHARE, USAGE_SECONDS
from perfwatch.triage.moving.work import Work, work_of
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.thresholds import MOST, SEVERAL_TIMES
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import silence
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Process, ProcessUsage

NAPS = "sleep"  # the program by which a script rests
BRIEF_SECONDS = 5.0  # of age: an older one that is no nap has something to do of its own
SEEN_SECONDS = 60.0


@dataclass(frozen=True)
class Rest:
    """What a child at rest does, as the end of a sentence (empty: the chain says it), and what shows it."""

    does: str
    evidence: tuple[Evidence, ...]


def at_rest(case: Case, chain: Chain, child: Member) -> Rest | None:
    """How a child that another process waits for rests, with all that it started; None where any of them may be at work."""
    works = {one.pid: _work(case, one.pid) for one in _alive(case, child)}
    idle = all(one is not None and one.cores <= STIRS_SHARE and one.data == 0 for one in works.values())
    if chain.end.kind == "sleep" and idle and all(_age(case, pid) >= temporal(case) for pid in works):
        return Rest("", _evidence(case, chain, child, "no CPU time, 0 bytes"))
    if not polls_by_programs(case, child):
        return None
    names = _programs(case, child)
    said = f"{names.count(NAPS)} of the {len(names)} programs that it started are {NAPS}, and they used almost no CPU"
    return Rest("starts brief programs and sleeps in between", _evidence(case, chain, child, said))


def polls_by_programs(case: Case, child: Member) -> bool:
    """True if a script does nothing but start brief programs, most of which are sleeps."""
    names = _programs(case, child)
    return len(names) >= SEVERAL_TIMES and names.count(NAPS) >= MOST * len(names)


def _alive(case: Case, child: Member) -> list[Member]:
    """A child, and all that it has started."""
    return [
        m for m in case.job.members.values() if m.alive and (m.pid == child.pid or case.job.branch(m.pid, child.pid))
    ]


def _programs(case: Case, child: Member) -> list[str]:
    """The brief programs that a script was met to start lately; none if it, or anything that it has started, does more."""
    known = {one.pid: one.process for one in _alive(case, child)}
    lasting = {pid: one for pid, one in known.items() if one.name != NAPS and _age(case, pid) >= BRIEF_SECONDS}
    works = [_work(case, pid) for pid in lasting]
    if child.pid not in lasting or any(one is None or one.sign >= SIGN_OF_LIFE for one in works):
        return []
    if any(one.python for one in lasting.values()):
        return []
    seen = [case.history.latest(Process, *key) for key in case.history.entities(Process) if key[0] not in lasting]
    lately = [one.reading for one in seen if one is not None and one.at >= case.at - SEEN_SECONDS]
    return [one.name for one in lately if one.parent_pid in lasting]


def _work(case: Case, pid: int) -> Work | None:
    """What a process uses; None if it was not watched for long enough."""
    watched = case.history.span(ProcessUsage, pid) or 0.0
    return work_of(case.history, pid) if watched >= USAGE_SECONDS else None


def _evidence(case: Case, chain: Chain, child: Member, said: str) -> tuple[Evidence, ...]:
    pid, silent = chain.start.pid, f"{duration(silence(case.history, chain.start) or 0.0)}"
    return (
        case.saw("thread", f"pid {pid}", "the training thread has not run", silent, "runs within each step"),
        case.saw("usage", f"pid {child.pid}", "works at nothing", f"{said}, in all that it started", "either"),
    )


def _age(case: Case, pid: int) -> float:
    seen = case.history.latest(Process, pid)
    return 0.0 if seen is None else (seen.reading.age_seconds or 0.0) + case.at - seen.at
