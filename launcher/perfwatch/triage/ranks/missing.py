"""Ranks of a job that were not seen: which they are, what those that are here wait for, and the rule for jobs on many hosts.

That rule knows what became of each host, which no recording of one machine does: every rank that was seen waits in a collective, and those
that were not are on hosts that do not answer, or are gone. No process has looked at the ranks that it blames, so it does so only where they
can be nowhere else.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import msgspec

from perfwatch.text import listed
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.hang import hung
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.moving.work import waited_on
from perfwatch.triage.patience import temporal
from perfwatch.triage.ranks.absentee import STALLED
from perfwatch.triage.ranks.thresholds import HIGH, SHOWN
from perfwatch.triage.roles.rank_gaps import RankGaps, rank_ranges
from perfwatch.triage.rule import Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.native_waits import OF_GLOO
from perfwatch.triage.waits.node import culprit, node_of
from perfwatch.verdict import Abstention, Alternative, Culprit, Missing, Outcome
from perfwatch_probes.readings import Descriptor, Thread

GLOO_CONNECTIONS = "gloo_tcp"  # the thread that carries what goes over them (gloo, transport/tcp/loop.cc)
NAME_ALL = "name every host of the job: perfwatch fleet --hosts ..."
LAST_WORDS = "look for the last words of the rank in the job's log"


def whole(case: Case) -> bool:
    """True if all ranks that the job says it has are seen, and it says how many."""
    return case.job.world_size is not None and len(case.ranks) >= case.job.world_size


def missing(present: list[int], seen: int, size: int | None) -> RankGaps:
    """The ranks that are not here, where all that are have their numbers; else none."""
    ranks = RankGaps(present, size)
    return ranks if len(ranks) == (size or 0) - seen else RankGaps((), 0)


def have_met(case: Case) -> bool:
    """True if all ranks were there once: torch makes gloo's workers once each is connected to every other (ProcessGroupGloo.cpp)."""
    return any(one.name.startswith(OF_GLOO) for one in _threads(case))


def blamed(case: Case, ranks: Collection[int]) -> tuple[Culprit, ...]:
    """The ranks that should be here; none of a job on several machines, or of one that is not seen whole."""
    here = {rank.process.local_world_size for rank in case.ranks}
    elsewhere = any(size is not None and size < (case.job.world_size or 0) for size in here)
    if elsewhere or case.lacks("ranks"):
        return ()
    return tuple(Culprit(pid=0, rank=rank) for rank in islice(ranks, SHOWN))


def departed(case: Case) -> tuple[tuple[Culprit, ...], str]:
    """The ranks that have ended while others are here, and that in words: ``; rank 2 (pid 7) has ended (exited with code 0)``."""
    ended = [rank for rank in case.job.ranks if not rank.alive][:SHOWN]
    told = ((rank, how_it_ended(case.history, rank.pid)) for rank in ended)
    words = (f"; rank {rank.rank} (pid {rank.pid}) has ended{f' ({how})' if how else ''}" for rank, how in told)
    return tuple(culprit(node_of(case.history, case.job, rank.pid)) for rank in ended), "".join(words)


def absent(case: Case, present: list[int], seen: int, size: int) -> str:
    """That some are not there, in words: have not come, or were there and are gone."""
    where = "not on this machine or not there at all"
    if unseen := case.lacks("ranks"):
        where = f"not seen here: {unseen.reason}"
    elif have_met(case):
        where = "gone since they met" + ("" if _lead_nowhere_else(case) else ", or where it cannot be seen from here")
    ranks = missing(present, seen, size)
    if not ranks or len(ranks) > SHOWN:
        return f"{size - seen} of {size} ranks are {where}"
    named = ", ".join(map(str, ranks))
    return f"rank {named} of {size} is {where}" if len(ranks) == 1 else f"ranks {named} of {size} are {where}"


def awaited(case: Case, chain: Chain) -> str:
    """What a rank waits for, where none is seen to stand elsewhere."""
    if chain.end.detail == "store":
        return "a key in the store that no rank has set"
    if not whole(case):
        return "the other ranks to appear"
    places: dict[str, int | None] = {}
    for rank in case.ranks:
        names = rank.process.environment
        places.setdefault(f"{names.get('MASTER_ADDR', '?')}:{names.get('MASTER_PORT', '?')}", rank.rank)
    apart = ", ".join(f"rank {rank} at {place}" for place, rank in list(places.items())[:SHOWN])
    told = f", and they look for each other at different places: {apart}" if len(places) > 1 else ""
    return f"the others, though all {len(case.ranks)} ranks are here{told}"


def _lead_nowhere_else(case: Case) -> bool:
    """True if every connection of gloo's that was seen leads to a rank that is here: it keeps one to each that lives."""
    history = case.history
    loops = [(one.pid, one.tid) for one in _threads(case) if one.name.startswith(GLOO_CONNECTIONS)]
    watched = {(pid, fd) for pid, tid in loops for fd in waited_on(history, pid, tid, WINDOW_SECONDS)}
    files = [history.latest(Descriptor, *key) for key in watched]
    sockets = [file.reading.socket for file in files if file is not None and file.reading.socket is not None]
    established = [one for one in sockets if one.state == "ESTABLISHED"]
    return bool(sockets) and all(case.job.members.keys() & one.peer_pids for one in established)


def _threads(case: Case) -> list[Thread]:
    looks = [case.history.latest(Thread, *key) for rank in case.ranks for key in case.history.of(Thread, rank.pid)]
    return [look.reading for look in looks if look is not None]


# Jobs on many hosts


class AskedHost(Protocol):
    """What became of one host that was asked: ``silent``, ``no_job`` and ``answered`` are the states that matter here."""

    @property
    def host(self) -> str:
        """Its name."""

    @property
    def state(self) -> str:
        """What became of it."""

    @property
    def reason(self) -> str:
        """Why it did not answer."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were seen there."""

    @property
    def unclear(self) -> bool:
        """True if ranks of the job may be there that were not seen."""


@dataclass(frozen=True)
class _Where:
    """What became of the ranks that were seen nowhere. ``host``: the one that can have them."""

    hosts: tuple[str, ...]
    does: str
    told: str
    next: str
    host: str | None = None
    ceiling: float = HIGH  # the culprits were not seen


class AbsentRanks:
    """The rule, with what is known of the hosts.

    Args:
        reports: what became of each host that was asked.
        complete: whether these are all hosts of the job: then a rank that is on none of them has ended.
        advice: how every process of a host can be looked at.
    """

    def __init__(self, reports: Sequence[AskedHost], complete: bool = False, advice: str = "") -> None:
        self._reports = reports
        self._complete = complete
        self._advice = advice

    @property
    def rule(self) -> Rule:
        """As the catalogue has it."""
        return Rule(STALLED, self._judge)

    def _judge(self, case: Case) -> Outcome:
        """Fires when all that is seen waits for ranks on a host that is silent, or that are on no host of the job any more."""
        ranks = case.job.absent
        waiting = [chain for chain in case.still_chains if chain.end.kind in ("collective", "gpu")]
        if not ranks or not waiting or len(waiting) < len(case.ranks) or len(case.ranks) < len(case.job.ranks):
            return None
        if unclear := [report.host for report in self._reports if report.unclear]:
            reason = f"may be on {listed(unclear)}, where not every process could be looked at"
            return _abstains(ranks, reason, f"{self._advice}; what hinders a look is told of each host")
        where = self._where(len(ranks))
        if where is None:
            return _abstains(
                ranks, "was seen on no host that was asked: another host has it, or it has ended", NAME_ALL
            )
        return self._finding(case, waiting, ranks, where)

    def _where(self, absent: int) -> _Where | None:
        """None where they may do well on a host that was not asked.

        A host may be listed and run no process of the job (a login node, a spare one). That says nothing about ranks.
        """
        silent, without = (
            tuple(report.host for report in self._reports if report.state == state) for state in ("silent", "no_job")
        )
        most = max((len(report.ranks) for report in self._reports), default=0)  # that any host has
        fits = absent <= most * len(silent)
        if silent and (fits or self._complete):
            host = silent[0] if len(silent) == 1 and fits and not without else None
            console = f"look at {silent[0]}, and at what its console says: it may be down, or out of memory"
            return _Where(silent, "does not answer", f"{listed(silent)} does not answer", console, host)
        has_none = f"{listed(without)} has no process of this job"
        if self._complete:
            told = "all hosts of the job have answered: it has ended" + (f" ({has_none})" if without else "")
            return _Where(without, "has no process of this job", told, LAST_WORDS)
        if without and not silent:
            return _Where(without, "has no process of this job", has_none, NAME_ALL, ceiling=ONE_SOURCE)
        return None

    def _finding(self, case: Case, waiting: list[Chain], absent: RankGaps, where: _Where) -> Outcome:
        reasons = {report.host: report.reason for report in self._reports}
        victims = rank_ranges(chain.start.rank or 0 for chain in waiting)
        found = hung(
            case,
            STALLED.name,
            waiting[0],
            owner="node",
            summary=f"rank {rank_ranges(absent)} was seen nowhere and {where.told}; rank {victims} waits for it in {waiting[0].awaited}",
            patience=temporal(case),
            ceiling=where.ceiling,
            evidence=tuple(
                case.saw("host", host, where.does, reasons[host] or "no answer", "answers, with its ranks")
                for host in where.hosts[:3]
            ),
            alternatives=(
                Alternative(
                    cause="straggling_rank",
                    refuted_by="no rank that is seen has moved; a look at the absent one would tell",
                ),
            ),
            next=(where.next,),
        )
        culprits = tuple(Culprit(pid=0, rank=rank, host=where.host) for rank in islice(absent, SHOWN))
        return msgspec.structs.replace(found, culprits=culprits)


def _abstains(ranks: RankGaps, reason: str, advice: str) -> Abstention:
    lacking = Missing(witness="ranks", reason=f"rank {rank_ranges(ranks)} {reason}", advice=advice)
    return Abstention(cause=STALLED.name, missing=(lacking,))
