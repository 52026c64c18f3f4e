"""The job ended as it should."""

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import ending
from perfwatch.triage.roles.job import Member
from perfwatch.triage.roles.placement import launches
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Finding, Outcome
from perfwatch_probes.readings import ProcessEnded

CAUSE = Cause("finished", "gone", "user_code", (ProcessEnded,))

CODE_KNOWN = 0.97
BY_HAND = 0.75  # a program that starts its ranks itself may not care how they end; torchrun, srun and mpirun do
CODE_UNKNOWN = 0.6  # gone without a traceback, an OOM record or a known code


def judge(case: Case) -> Outcome:
    """Fires when the job is gone and nothing failed."""
    end = ending(case)
    if end is None or end.signal or end.exit_code not in (0, None):
        return None
    known = end.exit_code == 0
    if not known and any((top := case.job.members.get(pid)) and top.alive for pid in case.session.root_pids):
        return None  # a script that is between two programs, a launcher that is about to say how it went
    unvouched = known and _starts_by_hand(case, end.pid) and not all(_known(rank) for rank in case.job.ranks)
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"the job (pid {end.pid}) has ended"
        + (" with exit code 0" if known else "; its exit code is not known")
        + ("; how its ranks ended was not seen" if unvouched else ""),
        confidence=CODE_UNKNOWN if not known else BY_HAND if unvouched else CODE_KNOWN,
        owner=CAUSE.owner,
        evidence=(
            case.saw("process", f"pid {end.pid}", "has ended", f"exit code {end.exit_code if known else 'unknown'}"),
        ),
    )


def _starts_by_hand(case: Case, pid: int) -> bool:
    """Whether a process is a Python program that is neither a rank nor a launcher that is known to care for its ranks."""
    member = case.job.members.get(pid)
    is_rank = pid in {rank.pid for rank in case.job.ranks}
    return member is not None and not is_rank and member.process.python and not launches(member.process)


def _known(rank: Member) -> bool:
    return rank.ended is not None and (rank.ended.exit_code is not None or bool(rank.ended.signal))


RULES = (Rule(CAUSE, judge),)
