"""Every rank that was seen waits in a collective, and those that were not seen are on hosts that do not answer, or are gone.

A rule for jobs on many hosts: it knows what became of each host, which no recording of one machine does. Nobody has looked at the
ranks that it blames, so it does so only where they can be nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import msgspec

from perfwatch.text import listed
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.rank_gaps import RankGaps, rank_ranges
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import stalled_collective
from perfwatch.triage.waits.chain import Chain
from perfwatch.verdict import Abstention, Alternative, Culprit, Missing, Outcome

WAITS = ("collective", "gpu")  # in a collective, or for a card on which a kernel waits
INFERRED = 0.85  # nobody has seen the ranks that are to blame
MOST_NAMED = 8
NAME_ALL = "name every host of the job: perfwatch fleet --hosts ..."
LAST_WORDS = "look for the last words of the rank in the job's log"


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
    ceiling: float = INFERRED


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
        return Rule(stalled_collective.CAUSE, self._judge)

    def _judge(self, case: Case) -> Outcome:
        """Fires when all that is seen waits for ranks on a host that is silent, or that are on no host of the job any more."""
        absent = case.job.absent
        waiting = [chain for chain in case.still_chains if chain.end.kind in WAITS]
        if not absent or not waiting or len(waiting) < len(case.ranks) or len(case.ranks) < len(case.job.ranks):
            return None
        if unclear := [report.host for report in self._reports if report.unclear]:
            return Abstention(cause=stalled_collective.CAUSE.name, missing=(_unlooked(absent, unclear, self._advice),))
        where = self._where(len(absent))
        if where is None:
            return Abstention(cause=stalled_collective.CAUSE.name, missing=(_nowhere(absent),))
        return self._finding(case, waiting, absent, where)

    def _where(self, absent: int) -> _Where | None:
        """None where they may do well on a host that was not asked.

        That a host which somebody named has no process of the job (a login node, a spare one) says nothing of ranks.
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
        what = waiting[0].awaited
        victims = rank_ranges(chain.start.rank or 0 for chain in waiting)
        found = hung(
            case,
            stalled_collective.CAUSE.name,
            waiting[0],
            owner="node",
            summary=f"rank {rank_ranges(absent)} was seen nowhere and {where.told}; rank {victims} waits for it in {what}",
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
        culprits = tuple(Culprit(pid=0, rank=rank, host=where.host) for rank in islice(absent, MOST_NAMED))
        return msgspec.structs.replace(found, culprits=culprits)


def _nowhere(absent: RankGaps) -> Missing:
    return Missing(
        witness="ranks",
        reason=f"rank {rank_ranges(absent)} was seen on no host that was asked: another host has it, or it has ended",
        advice=NAME_ALL,
    )


def _unlooked(absent: RankGaps, hosts: list[str], advice: str) -> Missing:
    return Missing(
        witness="ranks",
        reason=f"rank {rank_ranges(absent)} may be on {listed(hosts)}, where not every process could be looked at",
        advice=f"{advice}; what hinders a look is told of each host",
    )
