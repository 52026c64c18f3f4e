"""Something is being downloaded, and bytes arrive."""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.arriving import passed, received, waited_on
from perfwatch.triage.moving.working import MOVING_BYTES
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.overlong import repeated
from perfwatch.triage.shares.starving import starving
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.native_waits import native_sockets
from perfwatch.triage.waits.node import NATIVE_WAIT
from perfwatch.triage.waits.sending import sends
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Finding, Outcome
from perfwatch_probes.readings import Descriptor, Thread

CAUSE = Cause("downloading", "busy", "network", (Thread, Descriptor))

LEAST_BYTES = (
    512  # fewer are the signs of life of a connection that is kept open; the slowest drill gets 8,000 a second
)
WINDOW_SECONDS = 20.0
WAITED, UNNAMED = 0.9, 0.7  # confidence: on the thread's own sockets; on any of its process


def judge(case: Case) -> Outcome:
    """Fires on a rank that makes no step while bytes arrive on the socket that it waits for."""
    fed = starving(case)
    for rank in case.ranks:
        if fed is not None and fed.rank.pid == rank.pid:
            continue  # batch after batch comes, however slowly
        now = case.progress[rank.pid]
        if now.kind == "moving" and now.steps is not None:
            continue
        chain = case.chains[rank.pid]
        recent = case.profile(rank, 6.0)
        if sends(chain.end) is not None or "remote_get" in chain.end.node.inner:
            continue  # nobody downloads by sending; what a cluster makes comes through its own store: these are signs of life
        if chain.end.kind not in ("network", NATIVE_WAIT) and not recent.share("http", "ssl"):
            continue
        own, behind = _own(case, chain), _behind(case, chain)
        arrived = _arrived(case, own | behind or _all(case, rank.pid))
        if arrived < LEAST_BYTES or recent.seen("optimizer", "backward"):
            continue
        if _arrived(case, own) < LEAST_BYTES and _trickles(case, behind or _all(case, rank.pid)):
            continue
        line = show(recent.top_line())
        return Finding(
            cause=CAUSE.name,
            state="busy",
            summary=f"something is being downloaded{' at ' + line if line else ''}: {arrived / 2**10:,.0f} KiB arrived meanwhile",
            confidence=repeated(case, recent.top_line(), WAITED if own | behind else UNNAMED),
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
    return frozenset((pid, fd) for pid, tid in waits for fd in waited_on(case.history, pid, tid, WINDOW_SECONDS))


def _behind(case: Case, chain: Chain) -> frozenset[tuple[int, int]]:
    """Those of the native threads of one that waits in native code."""
    pid = chain.end.node.pid
    fds = native_sockets(case.history, pid, WINDOW_SECONDS) if chain.end.kind == NATIVE_WAIT else ()
    return frozenset((pid, fd) for fd in fds)


def _all(case: Case, pid: int) -> frozenset[tuple[int, int]]:
    return frozenset(case.history.of(Descriptor, pid))


def _arrived(case: Case, files: frozenset[tuple[int, int]]) -> int:
    """Bytes that came there from outside of the job: one of its own processes that answers downloads nothing by that."""
    return sum(passed(case.history, *key, WINDOW_SECONDS) for key in files if _from_outside(case, *key))


def _trickles(case: Case, files: frozenset[tuple[int, int]]) -> bool:
    """Whether what arrives there is as little as what keeps the connections of a store alive."""
    outside = [key for key in files if _from_outside(case, *key)]
    rates = (case.history.rate(Descriptor, *key, of=received, seconds=WINDOW_SECONDS) for key in outside)
    return sum(rate or 0.0 for rate in rates) < MOVING_BYTES


def _from_outside(case: Case, pid: int, fd: int) -> bool:
    seen = case.history.latest(Descriptor, pid, fd)
    socket = seen.reading.socket if seen is not None else None
    return socket is not None and not case.job.members.keys() & socket.peer_pids


RULES = (Rule(CAUSE, judge),)
