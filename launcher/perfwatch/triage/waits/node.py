"""One thread on a wait chain, and what the end of a chain can be."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from perfwatch.triage.history import History, is_past, open_file
from perfwatch.triage.moving.motion import Motion, dominant, motion, python_threads
from perfwatch.triage.roles.job import Job
from perfwatch.triage.words.code import looking
from perfwatch.triage.words.frames import any_tag, inner_tags, is_user, show, tags, tags_of, user_frame
from perfwatch.verdict import Culprit
from perfwatch_probes import readings as r

WOKEN_ONCE = ("futex", "read", "write", "recv", "send", "child")
NATIVE_WAIT = "native_wait"  # the kind of an end that waits in native code, for something that Python does not know
# Kinds of an end that runs; of a thread that spins for its card, too, where the card does not tell.
RUNS = ("python", "native")
WRITABLE, READABLE = 4, 1  # of poll(2)
STDIN, OWN_TERMINALS = 0, ("/dev/tty", "/dev/console")
ENDLESS_SECONDS = 60.0  # a timeout beyond this is an error's, not a poll's


@dataclass(frozen=True)
class Node:
    """One thread on the chain and everything known about it now."""

    pid: int
    tid: int
    rank: int | None
    rank_pid: int | None
    role: str
    thread: r.Thread | None
    thread_at: float
    stack: r.Stack | None
    tags: frozenset[str]  # of all its frames
    inner: frozenset[str]  # of the library frames inside the program's innermost own one
    motion: Motion

    @property
    def frame(self) -> r.Frame | None:
        """The program's own line that it is at."""
        return user_frame(self.stack) if self.stack else None

    @property
    def wait(self) -> r.Wait | None:
        """The system call in which it is blocked."""
        return self.thread.wait if self.thread else None

    @property
    def state(self) -> str | None:
        """The kernel's letter."""
        return self.thread.state if self.thread else None

    @property
    def name(self) -> str:
        """The thread's name, as Python or the kernel knows it."""
        return (self.stack.thread if self.stack else "") or (self.thread.name if self.thread else "")

    @property
    def naps(self) -> bool:
        """True if it sleeps a little, again and again at one place, and reads and writes nothing in between."""
        sleeps = self.wait is not None and self.wait.kind == "sleep"
        return sleeps and self.motion.distinct <= 1 and not self.motion.io_calls


def has_timeout(node: Node) -> bool:
    """Blocked in a futex with a timeout."""
    return node.wait is not None and node.wait.kind == "futex" and not node.wait.forever


def waits_forever(node: Node) -> bool:
    """Blocked in a futex without a timeout."""
    return node.wait is not None and node.wait.kind == "futex" and node.wait.forever


def waits_for_its_object(node: Node) -> bool:
    """True if only the awaited object can end the wait: then the kernel's memory of the last run is exact."""
    wait = node.wait
    endless = wait is not None and (wait.forever or (wait.remaining_seconds or 0.0) > ENDLESS_SECONDS)
    return wait is not None and endless and wait.kind in WOKEN_ONCE


def gives(wait: r.Wait, fd: int) -> bool:
    """True if a thread waits to hand something over on a descriptor, and not to get something there."""
    polled = any(one.fd == fd and one.events & WRITABLE and not one.events & READABLE for one in wait.polled)
    return wait.kind in ("send", "write") or polled


def is_typed_at(terminal: r.Descriptor) -> bool:
    """True if a person may sit at a terminal: it is stdin, or the process' controlling one (``/dev/tty`` is another name of that).

    Others are serial lines to a device, or the terminals that programs make for those that they talk to.
    """
    return terminal.fd == STDIN or terminal.target in OWN_TERMINALS or terminal.controlling is True


EVENT_LOOP = "asyncio"  # tag of its frames


def in_event_loop(node: Node) -> bool:
    """True if a thread rests in an event loop: what that listens on is silent, and no timer of its own is due."""
    return node.wait is not None and node.wait.kind == "poll" and EVENT_LOOP in node.inner


@dataclass(frozen=True)
class End:
    """Where a chain ends.

    kind: dead stopped traced input network storage pipe_full pipe_empty file_lock file_poll sleep lock gil python native
    collective rendezvous feeder idle cycle uninterruptible gpu driver native_wait other unknown.
    silent_seconds: how long nothing of it moved, from the kernel's memory or our own; None: not known.
    """

    kind: str
    node: Node
    silent_seconds: float | None = None
    descriptor: r.Descriptor | None = None
    detail: str = ""
    others: tuple[int, ...] = ()  # peers, holders, readers outside the chain

    @property
    def still(self) -> bool | None:
        """True if nothing of the end moves."""
        return True if self.kind in ("dead", "stopped") else self.node.motion.frozen


# What a thread waits for in words, the threads that it waits for, and the end where the chain goes no further.
Found = tuple[str, tuple[Node, ...], End | None]


def culprit(node: Node) -> Culprit:
    """A node as somebody to blame."""
    return Culprit(
        pid=node.rank_pid or node.pid,
        rank=node.rank,
        worker_pid=node.pid if node.rank_pid not in (None, node.pid) else None,
        tid=node.tid,
        thread=node.name or None,
        frame=show(node.frame),
    )


def node_of(history: History, job: Job, pid: int, tid: int | None = None) -> Node:
    """Gather one thread (default: the main one)."""
    tid = pid if tid is None else tid
    member = job.members.get(pid)
    seen = history.latest(r.Thread, pid, tid)
    stack = dominant(history, pid, tid)
    return Node(
        pid=pid,
        tid=tid,
        rank=member.rank if member else None,
        rank_pid=member.rank_pid if member else None,
        role=member.role if member else "child",
        thread=seen.reading if seen else None,
        thread_at=seen.at if seen else 0.0,
        stack=stack.reading if stack else None,
        tags=tags(stack.reading) if stack else frozenset(),
        inner=inner_tags(stack.reading) if stack else frozenset(),
        motion=motion(history, pid, tid),
    )


def beside(history: History, job: Job, node: Node) -> list[Node]:
    """The other Python threads of its process."""
    return [node_of(history, job, node.pid, tid) for tid in python_threads(history, node.pid) if tid != node.tid]


def threads_of(history: History, pid: int) -> list[r.Thread]:
    """Each thread of a process, as it was last sampled."""
    looks = (history.latest(r.Thread, *key) for key in history.of(r.Thread, pid))
    return [one.reading for one in looks if one is not None]


def waited_on(history: History, node: Node) -> list[r.Descriptor]:
    """What a thread is blocked on; for an epoll instance, what that watches."""
    if node.wait is None:
        return []
    found = _opened(history, node, [node.wait.fd] if node.wait.fd is not None else [one.fd for one in node.wait.polled])
    watched = [fd for file in found if file.kind == "epoll" for fd in file.watched]
    return [*(file for file in found if file.kind != "epoll"), *_opened(history, node, watched)]


def _opened(history: History, node: Node, fds: Iterable[int]) -> list[r.Descriptor]:
    return [seen.reading for fd in fds if (seen := open_file(history, node.pid, node.tid, fd))]


def led_to(nodes: Sequence[Node], why: str = "") -> Found:
    """Where a wait leads that one of these threads ends."""
    return f"thread {nodes[0].name or nodes[0].tid}{why}", tuple(nodes), None


def silence(history: History, node: Node) -> float | None:
    """Seconds since this thread last did anything that we or the kernel know of."""
    remembered = None
    if node.thread is not None and node.thread.ran_ago_seconds is not None and node.thread.state != "R":
        remembered = node.thread.ran_ago_seconds + (history.at - node.thread_at)
        if waits_for_its_object(node):
            return remembered  # only what it waits for wakes it: whatever looks alike before that was an earlier wait
    watched = _unchanged_seconds(history, node)
    known = [value for value in (remembered, watched) if value is not None]
    return max(known) if known else None


def _unchanged_seconds(history: History, node: Node) -> float | None:
    """For how long, up to now, every stack of the thread had the same user line, or one of the same loop that looks for a file."""
    series = [one for one in history.series(r.Stack, node.pid, node.tid) if one.reading.frames]
    if series and is_past(history, series[-1]):
        return None  # it has gone on to another wait since
    if not series:
        return None
    frame = user_frame(series[-1].reading)
    turn = looking(history, frame)
    began = series[-1].at - series[-1].reading.span_seconds
    for one in reversed(series):
        here = user_frame(one.reading)
        if here != frame and not _in_turn(here, frame, turn):
            break
        began = one.at - one.reading.span_seconds
    return history.at - began


def _in_turn(here: r.Frame | None, frame: r.Frame | None, turn: range) -> bool:
    if here is None or frame is None:
        return False
    return (here.function, here.file) == (frame.function, frame.file) and here.line in turn


ASKS = ("mp_queue_get", "mp_lock", "queue_get", "mp_receive")


def idle(worker: Node) -> bool:
    """A worker that waits for its next task has nothing to deliver."""
    if worker.state in ("T", "t", "D") or worker.stack is None:
        return False
    asks = any_tag(worker.inner, *ASKS) or ("futures_worker" in worker.tags and between_tasks(worker.stack))
    return asks and "fetch" not in worker.tags and not any(map(is_user, in_task(worker.stack)))


def between_tasks(stack: r.Stack) -> bool:
    """True if a thread of an executor is in the loop itself, which asks a queue without a frame of its own."""
    inner = stack.frames[0] if stack.frames else None
    return (
        inner is not None
        and inner.file.endswith("concurrent/futures/thread.py")
        and "futures_worker" in tags_of(inner.function, inner.file)
    )


def in_task(stack: r.Stack) -> list[r.Frame]:
    """The frames inside of the loop that takes tasks."""
    return list(
        takewhile(
            lambda one: not any_tag(tags_of(one.function, one.file), "worker", "pool_worker", "futures_worker"),
            stack.frames,
        )
    )
