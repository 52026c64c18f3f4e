"""At each epoch's start all workers are started anew."""

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.motion import tags_seen
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import in_own_sampler
from perfwatch.triage.slowness import WINDOW_SECONDS, certainty, slow, working
from perfwatch.triage.words.frames import any_tag, show, tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Process, ProcessEnded, Stack

CAUSE = Cause("worker_respawn", "slow", "data", (Process, Stack))

GENERATIONS = 2  # of workers, within the samples that are judged
CHANGING = frozenset({"loader_start", "loader_stop"})
# Workers that are spawned are started at once and awaited long.
WAITING = CHANGING | {"loader_wait"}
LEAST_SHARE = 0.1
# One that was forked takes its first task within hundredths of a second; one that imports the program is seen at it.
STARTS_SECONDS = 0.5


def judge(case: Case) -> Outcome:
    """Fires when generations of workers come and go while the rank works."""
    for rank, seen in working(case):
        since = case.at - max(WINDOW_SECONDS, seen.seconds)
        workers = [
            child for child in case.job.children(rank.pid) if _is_worker(case, child) and _until(case, child) >= since
        ]
        gone = [worker for worker in workers if not worker.alive]
        alive = [worker for worker in workers if worker.alive]
        size = max(1, len(alive))
        if len(gone) < size or not workers or len(workers) < GENERATIONS * size:
            continue
        starts = [_start(case, worker) for worker in workers]
        changing = sum(one.reading.samples for one in seen.sights if _changes(one, starts))
        lost = changing / seen.samples
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


def _until(case: Case, child: Member) -> float:
    """When a child ended; now, while it lives."""
    gone = case.history.latest(ProcessEnded, child.pid)
    return case.at if child.alive or gone is None else gone.at


def _start(case: Case, worker: Member) -> tuple[float, float]:
    """From when to when a worker came up: a moment, or until it was last seen to import; not once it was seen at a task."""
    first = case.history.series(Process, worker.pid)[0]
    born = first.at - (first.reading.age_seconds or 0.0)
    sights = [one for one in case.history.series(Stack, worker.pid, worker.pid) if one.at > born]
    begun = max((one.at for one in sights if "import" in tags(one.reading)), default=born) + STARTS_SECONDS
    at_task = (one.at - one.reading.span_seconds for one in sights if _at_task(one.reading))
    return born, min(begun, next(at_task, begun))


def _at_task(stack: Stack) -> bool:
    """Whether a worker works at a batch, or asks for one."""
    found = tags(stack)
    return "worker" in found and any_tag(found, "fetch", "mp_queue_get")


def _changes(one: Seen[Stack], starts: list[tuple[float, float]]) -> bool:
    """Whether the training thread starts or joins workers, or waits for such as come up: those at work make it wait otherwise.

    A sampler of the program's own draws the first batches below the start: that is its time.
    """
    found = tags(one.reading)
    if in_own_sampler(one.reading):
        return False
    middle = one.at - one.reading.span_seconds / 2
    return any_tag(found, *CHANGING) or ("loader_wait" in found and any(a <= middle <= b for a, b in starts))


def _is_worker(case: Case, child: Member) -> bool:
    """Whether a child is or was a loader's worker; one that was spawned a moment ago still imports the program."""
    if child.role == "worker":
        return True
    found = tags_seen(case.history, child.pid, child.pid)
    return "worker" in found or (child.role == "child" and child.alive and found == {"import"})


RULES = (Rule(CAUSE, judge),)
