"""The job ended as it should.

What it means
    Every rank is gone and nothing speaks of a failure.

How it is recognised
    The ranks' processes have ended, the exit code is known to be 0 (``run`` knows it; a zombie tells it).

What it is mistaken for
    ``crashed`` and ``killed``: another exit code, a traceback, a signal. Without an exit code the verdict says so.

What to do next
    Nothing.
"""

from perfwatch.probes.readings import ProcessEnded
from perfwatch.triage.case import Case
from perfwatch.triage.gone import ending
from perfwatch.triage.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Finding, Outcome

CAUSE = Cause("finished", "gone", "user_code", (ProcessEnded,))

CODE_KNOWN = 0.97
OF_LAUNCHER = 0.75  # one that starts its ranks by hand may not care how they end
CODE_UNKNOWN = 0.6  # gone without a traceback, an OOM record or a known code


def judge(case: Case) -> Outcome:
    """Fires when the job is gone and nothing failed."""
    end = ending(case)
    if end is None or end.signal or end.exit_code not in (0, None):
        return None
    known = end.exit_code == 0
    unseen = [rank for rank in case.job.ranks if rank.pid != end.pid and not _known(rank)]
    launched = end.pid not in {rank.pid for rank in case.job.ranks} and unseen
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"the job (pid {end.pid}) has ended"
        + (" with exit code 0" if known else "; its exit code is not known")
        + ("; how its ranks ended was not seen" if known and launched else ""),
        confidence=CODE_UNKNOWN if not known else OF_LAUNCHER if launched else CODE_KNOWN,
        owner=CAUSE.owner,
        evidence=(
            case.saw("process", f"pid {end.pid}", "has ended", f"exit code {end.exit_code if known else 'unknown'}"),
        ),
    )


def _known(rank: Member) -> bool:
    return rank.ended is not None and (rank.ended.exit_code is not None or bool(rank.ended.signal))
