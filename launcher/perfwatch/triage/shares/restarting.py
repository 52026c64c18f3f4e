"""Ranks that the launcher starts again and again, as a finding."""

from perfwatch.triage.case import Case
from perfwatch.triage.roles.restarts import restarts
from perfwatch.verdict import Alternative, Culprit, Finding

RESTARTS = 2  # generations of one rank
LOOP, ONCE = 0.92, 0.55  # more than one restart; a single one may have been the last: a suspicion


def restarting(case: Case, cause: str) -> Finding | None:
    """That ranks end and new ones of the same number take their places; None where none did."""
    found = restarts(case)
    if found is None:
        return None
    return Finding(
        cause=cause,
        state="slow",
        summary=(
            f"the launcher restarts the ranks again and again: {found.processes} processes of rank {found.rank} "
            if found.processes > RESTARTS
            else f"the launcher has restarted the ranks once: a second process of rank {found.rank} "
        )
        + f"in {found.seconds:.0f} s",
        confidence=LOOP if found.processes > RESTARTS else ONCE,
        lost_share=1.0,
        owner="user_code",
        culprits=tuple(Culprit(pid=m.pid, rank=m.rank) for m in case.job.ranks[:2]),
        evidence=(
            case.saw(
                "process",
                f"rank {found.rank}",
                "replaced",
                f"{found.processes} processes, one after the other, in {found.seconds:.0f} s",
                "one",
            ),
        ),
        alternatives=(Alternative(cause="crashed", refuted_by="a new process takes the place of each one that ends"),),
        next=("read the first traceback in the ranks' own output",),
    )
