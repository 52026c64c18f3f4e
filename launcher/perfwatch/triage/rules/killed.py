"""The job was ended by a signal."""

import signal

from perfwatch.failures import forms
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import ended_by, ending, told_by_shell, used_a_gpu
from perfwatch.triage.ends.last_calls import last_calls, left_behind_at_the_end
from perfwatch.triage.ranks.groups import Standing
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import ProcessEnded

CAUSE = Cause("killed", "gone", "unknown", (ProcessEnded,), also=forms("killed"))

SURE = 0.95
BY_ITSELF = 0.78  # SIGABRT of a job on a GPU: torch aborts for a CUDA error, whose words were not kept
UNSEEN_SENDER = 0.79  # SIGKILL: without a kernel log the OOM killer of a group above ours looks the same


def judge(case: Case) -> Outcome:
    """Fires on an end by signal."""
    end, number = ending(case), ended_by(case)
    if end is None or not number or number not in signal.valid_signals():
        return None
    name = signal.Signals(number).name
    pid = _whom(case, end)
    behind = left_behind_at_the_end(case)
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"pid {pid} was ended by {name}"
        + _of_the_whole(case, pid)
        + (f"; {last_calls(behind)}" if behind else ""),
        confidence=_confidence(case, number),
        owner=CAUSE.owner,
        culprits=(Culprit(pid=pid, rank=case.job.rank_of(pid)),),
        evidence=(
            case.saw("process", f"pid {end.pid}", "ended by a signal", _shown(end, name), "exit code 0"),
            *(_recorded(case, behind) if behind else ()),
        ),
        alternatives=(
            Alternative(
                cause="out_of_memory", refuted_by="no OOM kill in the control group's counter or the kernel log"
            ),
        ),
        next=("dmesg | tail -50", "sacct -j JOBID (or the scheduler's own log)"),
    )


def _recorded(case: Case, behind: Standing) -> tuple[Evidence, ...]:
    entity, claim = f"group {behind.group}", "its ranks had not called equally often when they wrote their dumps"
    return (case.saw("flight_recorder", entity, claim, behind.reach, "the same in every rank", behind.at),)


def _whom(case: Case, end: ProcessEnded) -> int:
    """The process that the signal ended: a shell tells in its exit code of its child, the rank where there is only one."""
    rank = case.job.ranks[0]
    tells = not end.signal and told_by_shell(end) is not None
    return rank.pid if tells and len(case.job.ranks) == 1 else end.pid


def _shown(end: ProcessEnded, name: str) -> str:
    return name if end.signal or end.exit_code is None else f"exit code {end.exit_code}, {name}"


def _confidence(case: Case, number: int) -> float:
    if number == signal.SIGABRT and used_a_gpu(case):
        return BY_ITSELF
    return UNSEEN_SENDER if number == signal.SIGKILL else SURE


def _of_the_whole(case: Case, ended: int) -> str:
    """How the launcher ended, where it is not the one that was killed: some care little for their ranks."""
    for pid in case.session.root_pids[:1]:
        top = case.history.latest(ProcessEnded, pid)
        if top is not None and pid != ended and top.reading.exit_code is not None:
            return f"; the job itself ended with exit code {top.reading.exit_code}"
    return ""


RULES = (Rule(CAUSE, judge),)
