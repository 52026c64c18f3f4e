"""Ranks of a job that were seen on no host: where they can be, by what became of each host that was asked.

No process has looked at the ranks that are blamed, so they are blamed only if they can be nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from perfwatch.fleet.merge.hosts import AS_OWNER, HostReport
from perfwatch.text import listed
from perfwatch.triage.case import Case
from perfwatch.triage.job import rank_ranges
from perfwatch.triage.questions import STALLED, RankPlace, hang_between, hang_timeout
from perfwatch.triage.rule import Facts, Rule
from perfwatch.verdict import Abstention, Level, Missing, Outcome

SEEN_NOWHERE = replace(STALLED, owner="node").line("""
    rank {lost} was not found on any host, and {told}; rank {victims} waits for it in {awaited}
    - not straggling_rank: no visible rank has moved; only a sample of the absent one would show it
    - next: {advice}
""")
SHOWN = 8  # culprits
NAME_ALL = "name every host of the job: perfwatch fleet --hosts ..."
LAST_WORDS = "check the last output of that rank in the job's log"


@dataclass(frozen=True)
class _Where:
    """What became of the ranks that were seen nowhere. ``host``: the one that can have them."""

    hosts: tuple[str, ...]
    does: str
    told: str
    next: str
    host: str | None = None
    ceiling: float = Level.HIGH  # the culprits were not seen


@dataclass(frozen=True)
class AbsentRanks:
    """The rule, with what is known of the hosts.

    Attributes:
        reports: what became of each host that was asked.
        complete: whether these are all hosts of the job: then a rank that is on none of them has ended.
    """

    reports: Sequence[HostReport]
    complete: bool = False

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
        lost, victims = rank_ranges(ranks), rank_ranges(chain.start.rank or 0 for chain in waiting)
        where, unclear = self._where(len(ranks)), [report.host for report in self.reports if report.unclear]
        if where is None or unclear:
            reason, advice = "was seen on no host that was asked: another host has it, or it has ended", NAME_ALL
            if unclear:
                reason = f"may be on {listed(unclear)}, where not every process could be looked at"
                advice = f"{AS_OWNER}; the reason is given for each host"
            missing = Missing(witness="ranks", reason=f"rank {lost} {reason}", advice=advice)
            return Abstention(cause=STALLED.name, missing=(missing,))
        reasons = {report.host: report.reason or "no answer" for report in self.reports}
        return hang_between(
            case,
            SEEN_NOWHERE,
            waiting,
            patience=hang_timeout(case),
            ceiling=where.ceiling,
            evidence=tuple(
                case.saw("host", host, where.does, reasons[host], "answers, with its ranks") for host in where.hosts[:3]
            ),
            culprits=[RankPlace(rank, 0, "", host=where.host) for rank in islice(ranks, SHOWN)],
            **Facts(lost=lost, told=where.told, victims=victims, advice=where.next),
        )

    def _where(self, absent: int) -> _Where | None:
        """None where they may do well on a host that was not asked.

        A host may be listed and run no process of the job (a login node, a spare one). That says nothing about ranks.
        """
        mute, without = (
            tuple(report.host for report in self.reports if report.state == state) for state in ("silent", "no_job")
        )
        most = max((len(report.ranks) for report in self.reports), default=0)  # that any host has
        fits = absent <= most * len(mute)
        if mute and (fits or self.complete):
            host = mute[0] if len(mute) == 1 and fits and not without else None
            console = f"check {mute[0]} and its console: it may be down, or out of memory"
            may_be_slow = any(report.early for report in self.reports if report.host in mute)
            ceiling = Level.MEDIUM if may_be_slow else Level.HIGH
            return _Where(mute, "does not answer", f"{listed(mute)} does not answer", console, host, ceiling)
        has_none = f"{listed(without)} has no process of this job"
        if self.complete:
            told = "all hosts of the job have answered: it has ended" + (f" ({has_none})" if without else "")
            return _Where(without, "has no process of this job", told, LAST_WORDS)
        if without and not mute:
            return _Where(without, "has no process of this job", has_none, NAME_ALL, ceiling=Level.LOW)
        return None
