"""Every rank that was seen waits in a collective, and those that were not seen are on hosts that do not answer, or are gone.

A rule for jobs on many hosts: it knows what became of each host, which no recording of one machine does.
"""

from collections.abc import Sequence

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.fleet.folding import rank_ranges
from perfwatch.triage.fleet.hosts import HostReport, listed, names
from perfwatch.triage.hang import hung, temporal
from perfwatch.triage.rules import stalled_collective
from perfwatch.triage.verdict import Abstention, Alternative, Culprit, Missing, Outcome
from perfwatch.triage.waits.chain import Chain

WAITS = ("collective", "gpu")  # in a collective, or for a card on which a kernel waits
INFERRED = 0.85  # nobody has seen the ranks that are to blame
MOST_NAMED = 8


class AbsentRanks:
    """The rule, with what is known of the hosts.

    Args:
        reports: what became of each host that was asked.
        complete: whether these are all hosts of the job: then a rank that is on none of them has ended.
    """

    CAUSE = stalled_collective.CAUSE

    def __init__(self, reports: Sequence[HostReport], complete: bool = False) -> None:
        self._reports = reports
        self._complete = complete and all(report.state in ("answered", "no_job", "double") for report in reports)

    def judge(self, case: Case) -> Outcome:
        """Fires when all that is seen waits for ranks on a host that is silent, or that has them no more."""
        seen = {rank.rank for rank in case.job.ranks}
        absent = [rank for rank in range(case.job.world_size or 0) if rank not in seen]
        waiting = [chain for chain in case.still_chains if chain.end.kind in WAITS]
        if not absent or not waiting or len(waiting) < len(case.ranks) or len(case.ranks) < len(case.job.ranks):
            return None
        silent, without = names(self._reports, "silent"), names(self._reports, "no_job")
        if not silent and not without and not self._complete:
            return Abstention(cause=self.CAUSE.name, missing=(_nowhere(absent),))
        return self._finding(case, waiting, absent, silent or without, bool(silent))

    def _finding(
        self, case: Case, waiting: list[Chain], absent: list[int], hosts: tuple[str, ...], silent: bool
    ) -> Outcome:
        reason = next((report.reason for report in self._reports if report.host in hosts[:1]), "")
        does = "does not answer" if silent else "answers, and has no process of this job any more"
        where = f"{listed(hosts)} {does}" if hosts else "all hosts of the job have answered: it has ended"
        what = waiting[0].awaited
        victims = rank_ranges(chain.start.rank or 0 for chain in waiting)
        found = hung(
            case,
            self.CAUSE.name,
            waiting[0],
            owner="node",
            summary=f"rank {rank_ranges(absent)} was seen nowhere and {where}; rank {victims} waits for it in {what}",
            patience=temporal(case),
            ceiling=INFERRED,
            evidence=tuple(
                case.saw("host", host, does, reason or "no answer", "answers, with its ranks") for host in hosts[:3]
            ),
            alternatives=(
                Alternative(
                    cause="straggling_rank",
                    refuted_by="no rank that is seen has moved; a look at the absent one would tell",
                ),
            ),
            next=tuple(
                f"look at {one}, and at what its console says: it may be down, or out of memory" for one in hosts[:1]
            )
            or ("look for the last words of the rank in the job's log",),
        )
        host = hosts[0] if len(hosts) == 1 else None
        culprits = tuple(Culprit(pid=0, rank=rank, host=host) for rank in absent[:MOST_NAMED])
        return msgspec.structs.replace(found, culprits=culprits)


def _nowhere(absent: list[int]) -> Missing:
    return Missing(
        witness="ranks",
        reason=f"rank {rank_ranges(absent)} was seen on no host that was asked: another host has it, or it has ended",
        advice="name every host of the job: perfwatch fleet --hosts ...",
    )
