"""Busy: the training thread waits for somebody else who works: a child process, or the owner of a file lock.

What it means
    A converter, a compressor, another process that builds an index or a cache: training goes on when it is done.

How it is recognised
    The wait chain leads to a child process, or ends at a file lock that somebody holds, and that process (or what it started)
    uses CPU time or reads and writes, in a thread that is not a mere heartbeat beside one that stands still.

What it is mistaken for
    ``blocked_child`` and ``waiting_for_file``: there nobody at the end of the chain does anything. A process that only burns
    CPU may also be in an endless loop: without a byte read or written the verdict is less sure.

What to do next
    Wait, or look at that process; do the work once, ahead of training.
"""

from collections.abc import Callable, Iterable

from perfwatch.probes.readings import Process, ProcessUsage, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.frames import show
from perfwatch.triage.motion import motion
from perfwatch.triage.node import Node, culprit, node_of
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Culprit, Finding, Outcome

CAUSE = Cause("waiting_on_work", "busy", "user_code", (Process, ProcessUsage, Thread))

ASKED = frozenset({"child", "join_process", "supervised"})
WATCHED_SECONDS = 3.0
WINDOW_SECONDS = 10.0
WORKING_SHARE = 0.05  # of a core
MOVING_BYTES = 4096  # per second
MOVES_DATA, BURNS_CPU = 0.88, 0.72


def judge(case: Case) -> Outcome:
    """Fires on a rank that stands still at the beginning of a chain to a process that works."""
    for chain in case.still_chains:
        for pid in _asked(case, chain):
            found = _finding(case, chain, pid)
            if found is not None:
                return found
    return None


def _asked(case: Case, chain: Chain) -> tuple[int, ...]:
    """The processes for whose work it waits."""
    if chain.end.kind == "file_lock":
        return chain.end.others
    child = case.job.branch(chain.end.node.pid, chain.start.pid) if chain.through & ASKED else None
    if child is None or case.job.members[child.pid].role == "worker":
        return ()
    return tuple(m.pid for m in case.job.members.values() if m.alive and _below(case, m.pid, child.pid))


def _below(case: Case, pid: int, top: int) -> bool:
    return pid == top or case.job.branch(pid, top) is not None


def _finding(case: Case, chain: Chain, pid: int) -> Finding | None:
    node = node_of(case.history, case.job, pid)
    if not _works(case, chain.end.node if chain.end.node.pid == pid else node):
        return None
    cpu = _rate(case, pid, lambda usage: usage.cpu_seconds)
    data = _rate(case, pid, lambda usage: float((usage.read_chars or 0) + (usage.written_chars or 0)))
    if cpu is None or (cpu < WORKING_SHARE and (data or 0.0) < MOVING_BYTES):
        return None
    moves_data = (data or 0.0) >= MOVING_BYTES
    member = case.job.members.get(pid)
    name = f" ({_command(member.process.command)})" if member is not None else ""
    at = f" at {show(node.frame)}" if node.frame else ""
    doing = f"{cpu:.0%} of a core" + (f", {(data or 0.0) / 1024:,.0f} KiB/s read and written" if moves_data else "")
    lock = f"a lock on {chain.end.detail}, held by " if chain.end.kind == "file_lock" else ""
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"the training thread waits for {lock}process {pid}{name}, which works{at}: {doing}",
        confidence=MOVES_DATA if moves_data else BURNS_CPU,
        owner=CAUSE.owner,
        culprits=(culprit(node) if member is not None else Culprit(pid=pid),),
        wait_chain=chain.links,
        evidence=(
            case.saw("usage", f"pid {pid}", "works", doing, "nothing would mean a hang"),
            case.saw(
                "thread",
                f"pid {chain.start.pid}",
                "the training thread waits for it",
                f"at {show(chain.start.frame)} for {chain.start.motion.ran_ago_seconds or 0.0:.0f} s",
            ),
        ),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
    )


def _works(case: Case, node: Node) -> bool:
    """Whether the thread that matters moves, or one beside it that does not rest in between, as a heartbeat does."""
    if node.motion.frozen is not True:
        return True
    tids = [key[1] for key in case.history.entities(Thread) if key[0] == node.pid and key[1] != node.tid]
    return any(motion(case.history, node.pid, tid).frozen is False and not _rests(case, node.pid, tid) for tid in tids)


def _rests(case: Case, pid: int, tid: int) -> bool:
    looks = case.history.series(Thread, pid, tid, seconds=WINDOW_SECONDS)
    waits = [one.reading.wait for one in looks if one.reading.wait is not None]
    return any(wait.kind in ("sleep", "poll", "futex") and not wait.forever for wait in waits)


def _rate(case: Case, pid: int, of: Callable[[ProcessUsage], float | None]) -> float | None:
    grown = case.history.growth(ProcessUsage, pid, of=of, seconds=WINDOW_SECONDS)
    return grown[0] / grown[1] if grown is not None and grown[1] >= WATCHED_SECONDS else None


def _command(words: Iterable[str]) -> str:
    return " ".join(" ".join(words).split())[:60]
