"""Busy: something is being downloaded, and bytes arrive.

What it means
    Weights or a data set come over the network. It ends by itself.

How it is recognised
    The wait chain ends in a socket, or the training thread is in HTTP frames, and bytes arrive on the sockets that the thread
    waits on (the kernel counts them); where it waits in native code, on those of its native threads. Of a thread that was never
    seen to wait those of its whole process count, for less.

What it is mistaken for
    ``blocked_network``: no byte arrives there, whatever other threads receive. A thread that sends to somebody who takes
    nothing.

What to do next
    Wait; keep the data nearer next time.
"""

from perfwatch.probes.readings import Descriptor, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.moving.arriving import passed, waited_on
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.overlong import repeated
from perfwatch.triage.verdict import Culprit, Finding, Outcome
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.native_waits import native_sockets
from perfwatch.triage.waits.node import NATIVE_WAIT
from perfwatch.triage.waits.sending import sends
from perfwatch.triage.words.frames import show

CAUSE = Cause("downloading", "busy", "network", (Thread, Descriptor))

LEAST_BYTES = (
    512  # fewer are the signs of life of a connection that is kept open; the slowest drill gets 8,000 a second
)
WINDOW_SECONDS = 20.0
WAITED, UNNAMED = 0.9, 0.7  # confidence: on the thread's own sockets; on any of its process


def judge(case: Case) -> Outcome:
    """Fires on a rank that makes no step while bytes arrive on the socket that it waits for."""
    for rank in case.ranks:
        now = case.progress[rank.pid]
        if now.kind == "moving" and now.steps is not None:
            continue
        chain = case.chains[rank.pid]
        recent = case.profile(rank, 6.0)
        if sends(chain.end) is not None or "remote_get" in chain.end.node.inner:
            continue  # nobody downloads by sending; what a cluster makes comes through its own store: these are signs of life
        if chain.end.kind not in ("network", NATIVE_WAIT) and not recent.share("http", "ssl"):
            continue
        own = _own(case, chain)
        arrived = _arrived(case, own or _all(case, rank.pid))
        if arrived < LEAST_BYTES or recent.seen("optimizer", "backward"):
            continue
        line = show(recent.top_line())
        return Finding(
            cause=CAUSE.name,
            state="busy",
            summary=f"something is being downloaded{' at ' + line if line else ''}: {arrived / 2**10:,.0f} KiB arrived meanwhile",
            confidence=repeated(case, recent.top_line(), WAITED if own else UNNAMED),
            owner=CAUSE.owner,
            culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=line),),
            evidence=(
                case.saw("socket", f"pid {rank.pid}", "bytes arrive", f"{arrived:,} bytes", "0 would mean a hang"),
                case.saw("stack", f"pid {rank.pid}", "waits for the network", line or "?", "training code"),
            ),
        )
    return None


def _own(case: Case, chain: Chain) -> frozenset[tuple[int, int]]:
    """The descriptors, by process, that the thread and whoever it waits for were seen to wait on."""
    waits = {(node.pid, node.tid) for node in (chain.start, chain.end.node)}
    own = frozenset((pid, fd) for pid, tid in waits for fd in waited_on(case.history, pid, tid, WINDOW_SECONDS))
    if chain.end.kind != NATIVE_WAIT:
        return own
    pid = chain.end.node.pid
    return own | {(pid, fd) for fd in native_sockets(case.history, pid, WINDOW_SECONDS)}


def _all(case: Case, pid: int) -> frozenset[tuple[int, int]]:
    return frozenset(case.history.of(Descriptor, pid))


def _arrived(case: Case, files: frozenset[tuple[int, int]]) -> int:
    return sum(passed(case.history, pid, fd, WINDOW_SECONDS) for pid, fd in files)
