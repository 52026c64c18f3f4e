"""Whether a process works: uses CPU time or moves bytes, and not in a mere heartbeat beside a thread that stands still."""

from collections.abc import Callable

from perfwatch.probes.readings import ProcessUsage, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.motion import motion
from perfwatch.triage.node import Node, node_of

WATCHED_SECONDS = 3.0
WINDOW_SECONDS = 10.0
WORKING_SHARE = 0.05  # of a core
MOVING_BYTES = 4096  # per second


def started_by(case: Case, pid: int) -> tuple[int, ...]:
    """The living processes below one, without the library's own servants and the workers of its loader."""
    members = (m for m in case.job.members.values() if m.alive and m.role not in ("service", "worker"))
    return tuple(m.pid for m in members if case.job.branch(m.pid, pid) is not None)


def works(case: Case, pid: int) -> bool:
    """Whether a process uses CPU time or moves bytes, and not in a mere heartbeat."""
    return moves(case, node_of(case.history, case.job, pid)) and busy_with(case, pid) is not None


def busy_with(case: Case, pid: int, watched_seconds: float = WATCHED_SECONDS) -> tuple[float, float] | None:
    """Share of a core and bytes per second, of a process that has enough of one and was watched for so long."""
    cpu = _rate(case, pid, lambda usage: usage.cpu_seconds, watched_seconds)
    moved = _rate(case, pid, lambda usage: float((usage.read_chars or 0) + (usage.written_chars or 0)), watched_seconds)
    data = moved or 0.0
    return (cpu, data) if cpu is not None and (cpu >= WORKING_SHARE or data >= MOVING_BYTES) else None


def moves(case: Case, node: Node) -> bool:
    """Whether the thread that matters moves, or one beside it that does not rest in between, as a heartbeat does."""
    if node.motion.frozen is not True:
        return True
    tids = [tid for _, tid in case.history.of(Thread, node.pid) if tid != node.tid]
    return any(motion(case.history, node.pid, tid).frozen is False and not _rests(case, node.pid, tid) for tid in tids)


def _rests(case: Case, pid: int, tid: int) -> bool:
    looks = case.history.series(Thread, pid, tid, seconds=WINDOW_SECONDS)
    waits = [one.reading.wait for one in looks if one.reading.wait is not None]
    return any(wait.kind in ("sleep", "poll", "futex") and not wait.forever for wait in waits)


def _rate(case: Case, pid: int, of: Callable[[ProcessUsage], float | None], watched_seconds: float) -> float | None:
    grown = case.history.growth(ProcessUsage, pid, of=of, seconds=WINDOW_SECONDS)
    return grown[0] / grown[1] if grown is not None and grown[1] >= watched_seconds else None
