"""The job ended with an error of its own."""

from itertools import islice

from perfwatch.failures import forms
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import (
    ending,
    failed_first,
    lost_a_peer,
    raised_for,
    told_by_shell,
    traceback_of,
    used_a_gpu,
)
from perfwatch.triage.ends.last_words import last_words, raised_at
from perfwatch.triage.ends.oom_victims import blamed, lost
from perfwatch.triage.roles.rank_gaps import RankGaps
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Culprit, Finding, Outcome
from perfwatch_probes.readings import ProcessEnded, Traceback

CAUSE = Cause("crashed", "gone", "user_code", (ProcessEnded,), also=forms("crashed"))

SURE = 0.97
LATE_WORDS = (
    "a CUDA error is raised at a later call than the one that failed: CUDA_LAUNCH_BLOCKING=1 shows which, and the "
    "device's own words (an assertion, an index) stand in stderr above",
)
NO_WORDS = "read the job's own stderr; sys.exit() with this code leaves no traceback"
UNSEEN_SENDER = 0.78  # a worker that SIGKILL ended: without a kernel log the OOM killer looks the same
GOT_OVER = 0.75  # whoever waited for it ended with 0: it may not matter, or nobody looked
FOLLOWED = 0.78  # a rank that only says that it lost another: how that one ended nobody saw
MOST_NAMED = 4
WITHOUT_WORDS = 0.78  # of a job on a GPU: an exit code is all that its allocator's refusal leaves as well


def judge(case: Case) -> Outcome:
    """Fires on a bad exit code or a traceback of a job that is gone."""
    end = ending(case)
    if end is None:
        return None
    words = traceback_of(case)
    if words is not None and failed_first(case, end, words):
        words = None
    if end.exit_code in (0, None) and words is None:
        return None
    if ((end.signal or told_by_shell(end)) and words is None) or raised_for(case):
        return None
    pid = words.pid if words is not None else end.pid
    last = last_words(words) if words is not None else ""
    code = (
        f"exit code {end.exit_code}{' of the job itself' if end.exit_code == 0 else ''}"
        if end.exit_code is not None
        else f"signal {end.signal}"
        if end.signal
        else "exit code unknown"
    )
    worker, unseen = lost(case), "" if words is not None else _unseen(case)
    evidence = [case.saw("process", f"pid {end.pid}", "has ended", code, "exit code 0")]
    if words is not None:
        evidence.append(case.saw("traceback", f"pid {pid}", "raised", last, "no exception"))
    return Finding(
        cause=CAUSE.name,
        state="gone",
        summary=f"pid {pid} crashed ({code})" + (f": {last}" if last else "") + unseen,
        confidence=_confidence(case, end, words, worker),
        owner=CAUSE.owner,
        culprits=(
            blamed(case, worker[0], end)  # the main process raises wherever it is when it hears of it
            if worker
            else Culprit(pid=pid, rank=case.job.rank_of(pid), frame=raised_at(words) if words is not None else None),
        ),
        evidence=tuple(evidence),
        alternatives=_alternatives(words, worker),
        next=(
            "read the traceback in the job's own stderr" if words is not None else NO_WORDS,
            *(
                LATE_WORDS
                if "CUDA error" in last
                else (f"dmesg | grep -i 'killed process {worker[0]}'",)
                if worker
                else ()
            ),
        ),
    )


def _unseen(case: Case) -> str:
    """That some rank was gone before anybody looked, which may be why this one ended; empty where all were seen."""
    size, seen = case.job.world_size or 0, {rank.rank for rank in case.job.ranks}
    missing = RankGaps(seen, size)
    if not missing or len(missing) == size:
        return ""
    named = ", ".join(map(str, islice(missing, MOST_NAMED))) + (", ..." if len(missing) > MOST_NAMED else "")
    return (
        f"; of rank {named} nothing was seen: it may have ended first"
        if len(missing) == 1
        else (f"; of ranks {named} nothing was seen: one of them may have ended first")
    )


def _alternatives(words: Traceback | None, worker: tuple[int, ...]) -> tuple[Alternative, ...]:
    if worker:
        return (Alternative(cause="out_of_memory", refuted_by="no OOM kill was seen, and not every one is"),)
    if words is not None and lost_a_peer(words):
        return (Alternative(cause="killed", refuted_by="no signal to another rank was seen, and not every one is"),)
    return ()


def _confidence(case: Case, end: ProcessEnded, words: Traceback | None, worker: tuple[int, ...]) -> float:
    if end.exit_code == 0:
        return GOT_OVER
    if worker:
        return UNSEEN_SENDER
    if (words is not None and lost_a_peer(words)) or (words is None and _unseen(case)):
        return FOLLOWED
    return SURE if words is not None or not used_a_gpu(case) else WITHOUT_WORDS


RULES = (Rule(CAUSE, judge),)
