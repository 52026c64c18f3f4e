"""At each epoch's start all workers are started anew.

What it means
    Without ``persistent_workers=True`` every epoch forks (and imports, and opens) everything again; with short epochs that is
    most of the time.

How it is recognised
    The workers' pids change while steps go on, and the training thread spends time in starting or joining them.

What it is mistaken for
    An index built at each epoch's start: no new pids. Workers that die: they leave an exit code, and torch raises.

What to do next
    ``DataLoader(persistent_workers=True)``.
"""

from perfwatch.probes.readings import Process, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show, tags
from perfwatch.triage.job import Member
from perfwatch.triage.motion import tags_seen
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import certainty, slow, working
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("worker_respawn", "slow", "data", (Process, Stack))

GENERATIONS = 2  # of workers, seen while we watched
# Workers that are spawned are started at once and awaited long.
WAITING = frozenset({"loader_start", "loader_stop", "loader_wait"})
LEAST_SHARE = 0.1


def judge(case: Case) -> Outcome:
    """Fires when generations of workers come and go while the rank works."""
    for rank, seen in working(case):
        workers = [child for child in case.job.children(rank.pid) if _is_worker(case, child)]
        gone = [worker for worker in workers if not worker.alive]
        alive = [worker for worker in workers if worker.alive]
        size = max(1, len(alive))
        if len(gone) < size or not workers or len(workers) < GENERATIONS * size:
            continue
        lost = seen.share(*WAITING)
        if lost < LEAST_SHARE:
            continue
        frame = seen.top_line(lambda stack: not tags(stack).isdisjoint(WAITING))
        return slow(
            case,
            CAUSE,
            rank,
            lost=lost,
            frame=frame,
            confidence=max(0.85, certainty(lost)),
            summary=f"the DataLoader starts its workers again and again: {len(workers)} worker processes came by, {len(gone)} are gone"
            + (f" (at {show(frame)})" if frame else ""),
            evidence=(
                case.saw(
                    "process",
                    f"pid {rank.pid}",
                    "new worker pids",
                    f"{len(workers)} workers seen, {len(alive)} alive",
                    "the same pids all the time",
                ),
                case.saw(
                    "stack",
                    f"pid {rank.pid}",
                    "starts or awaits workers",
                    f"{lost:.0%} of {seen.samples} samples",
                    "once per run",
                ),
            ),
            alternatives=(Alternative(cause="dead_worker", refuted_by="steps go on after each change"),),
            next=("DataLoader(persistent_workers=True), made once, before the first epoch",),
        )
    return None


def _is_worker(case: Case, child: Member) -> bool:
    """Whether a child is or was a loader's worker; one that was spawned a moment ago still imports the program."""
    if child.role == "worker":
        return True
    found = tags_seen(case.history, child.pid, child.pid)
    return "worker" in found or (child.role == "child" and child.alive and found == {"import"})
