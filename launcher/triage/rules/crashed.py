"""The job ended with an error of its own.

What it means
    A rank raised, or exited with another code than 0.

How it is recognised
    An exit code other than 0 (``run`` and zombies tell it), or the last traceback that the agent kept.

What it is mistaken for
    ``killed`` (a signal) and ``out_of_memory``. When one rank crashes, its launcher ends the others: the first to go
    is named. When one is killed, the others raise because they lost it: that is ``killed``.

What to do next
    Read the traceback, its last line first.
"""

from perfwatch.probes.readings import ProcessEnded
from perfwatch.triage.case import Case
from perfwatch.triage.gone import ending, killed_first, passed_on, traceback_of, used_a_gpu
from perfwatch.triage.last_words import last_words, raised_at
from perfwatch.triage.oom_victims import lost
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Alternative, Culprit, Finding, Outcome

CAUSE = Cause("crashed", "gone", "user_code", (ProcessEnded,))

SURE = 0.97
LATE_WORDS = (
    "a CUDA error is raised at a later call than the one that failed: CUDA_LAUNCH_BLOCKING=1 shows which, and the "
    "device's own words (an assertion, an index) stand in stderr above",
)
UNSEEN_SENDER = 0.78  # a worker that SIGKILL ended: without a kernel log the OOM killer looks the same
WITHOUT_WORDS = 0.78  # of a job on a GPU: an exit code is all that its allocator's refusal leaves as well


def judge(case: Case) -> Outcome:
    """Fires on a bad exit code or a traceback of a job that is gone."""
    end = ending(case)
    if end is None:
        return None
    words = traceback_of(case)
    if end.exit_code in (0, None) and words is None:
        return None
    if (end.signal and (words is None or killed_first(case, end, words))) or passed_on(case):
        return None
    pid = words.pid if words is not None else end.pid
    last = last_words(words) if words is not None else ""
    code = (
        f"exit code {end.exit_code}"
        if end.exit_code is not None
        else f"signal {end.signal}"
        if end.signal
        else "exit code unknown"
    )
    worker = lost(case)
    evidence = [case.saw("process", f"pid {end.pid}", "has ended", code, "exit code 0")]
    if words is not None:
        evidence.append(case.saw("traceback", f"pid {pid}", "raised", last, "no exception"))
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"pid {pid} crashed ({code})" + (f": {last}" if last else ""),
        confidence=UNSEEN_SENDER if worker else SURE if words is not None or not used_a_gpu(case) else WITHOUT_WORDS,
        owner=CAUSE.owner,
        culprits=(
            Culprit(
                pid=pid,
                rank=case.job.rank_of(pid),
                frame=raised_at(words) if words is not None else None,
            ),
        ),
        evidence=tuple(evidence),
        alternatives=(Alternative(cause="out_of_memory", refuted_by="no OOM kill was seen, and not every one is"),)
        if worker
        else (),
        next=(
            "read the traceback in the job's own stderr",
            *(
                LATE_WORDS
                if "CUDA error" in last
                else (f"dmesg | grep -i 'killed process {worker[0]}'",)
                if worker
                else ()
            ),
        ),
    )
