"""The wait chain: from the training thread, through pipes, queues, workers, locks and children, to whatever does not move.

The one that waits is a victim; the one at the end is the culprit. ``step`` knows where each kind of wait leads: what a thread waits
for is told by its stack (torch's and CPython's own functions) and by its blocked system call (number, fd, path, deadline). Names of wait
channels differ between kernels and decide nothing here. ``follow`` walks and remembers the way.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from perfwatch.text import duration
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.thresholds import LATELY_SECONDS, RUNS_SHARE
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits import devices, libraries, other_end, polling, threads, workers
from perfwatch.triage.waits.libraries import REMOTE
from perfwatch.triage.waits.node import (
    End,
    Node,
    culprit,
    gives,
    idle,
    is_typed_at,
    node_of,
    silence,
    waited_on,
    waits_forever,
)
from perfwatch.triage.waits.threads import HELD, awaited, takes_again
from perfwatch.triage.words.frames import any_tag, collective_name, show
from perfwatch.verdict import IT_RUNS, NAPS, SLEEP, SLEEP_LEFT, Culprit, Link
from perfwatch_probes import readings as r

STREAMS = {0: "stdin", 1: "stdout", 2: "stderr"}
OF_LIBRARIES = (
    ("lock", libraries.of_a_library),
    ("call", libraries.caller),
    (libraries.REMOTE, libraries.makers),
    ("peers", libraries.not_yet_done),
    ("rpc", libraries.remote_calls),
)
LONGEST_NAP_SECONDS = 5.0  # between two wake-ups of a loop that sleeps again and again
SIGNAL_WAITS = ("rt_sigtimedwait", "rt_sigsuspend", "pause")


@dataclass(frozen=True)
class Edge:
    """One step: either targets to follow, or the end. ``otherwise``: the end, where the targets turn out to wait for this one."""

    kind: str
    waits_for: str
    targets: tuple[Node, ...] = ()
    end: End | None = None
    otherwise: End | None = None


def ending(kind: str, node: Node, waits_for: str, **facts: object) -> Edge:
    """The chain ends here."""
    return Edge(kind, waits_for, end=End(kind, node, **facts))  # type: ignore[arg-type]


def step(history: History, job: Job, node: Node) -> Edge:
    """Where the chain goes from this thread."""
    member = job.members.get(node.pid)
    if member is not None and not member.alive:
        return ending("dead", node, "nothing: the process is gone")
    if node.state in ("Z", "X"):
        return ending("dead", node, "nothing: the thread is gone")
    if node.state == "T":
        return ending("stopped", node, "SIGCONT: the process is stopped")
    if node.state == "t":
        return ending("traced", node, "its tracer")
    for look in (_by_library, _by_descriptor, _by_call):
        edge = look(history, job, node)
        if edge is not None:
            return edge
    return ending("unknown", node, "something that perfwatch cannot see")


def _by_library(history: History, job: Job, node: Node) -> Edge | None:
    """Waits that the library frames inside the program's innermost own frame name."""
    inner = node.inner
    if node.role in ("worker", "pool_worker") and idle(node):
        # found through a pipe, at whose other end it is: it keeps no thread waiting
        return ending("other", node, "its next task")
    if "prompt" in inner and node.state != "R":
        return ending("input", node, "input at the debugger's prompt")
    for kind, look in OF_LIBRARIES:
        if (found := look(history, job, node)) is not None:
            return Edge(kind, *found)
    if "loader_wait" in inner:
        return Edge("loader", *workers.loader(history, job, node))
    if any_tag(inner, "pool_wait", "futures_wait") and (found := workers.pool(history, job, node)) is not None:
        return Edge("pool", *found)
    if "rendezvous" in inner:
        return ending("rendezvous", node, "the other ranks to join")
    if "collective" in inner:
        return ending("collective", node, collective_name(node.stack) or "a collective" if node.stack else "")
    if (theirs := libraries.of_peers(history, job, node)) is not None:
        return ending("collective", node, theirs[0], detail=theirs[1])
    if node.wait is not None and node.wait.call in workers.FORKS and (young := workers.begun(history, job, node)):
        return Edge("child", *young)
    if "child_wait" in inner or (node.wait is not None and node.wait.kind == "child"):
        # communicate() reads on where a child has ended and what it left behind still holds its output: the pipe tells more
        if not other_end.outlived(history, job, node):
            return Edge("child", *workers.child(history, job, node))
        known = waited_on(history, node)
        return (
            None if known else ending("unknown", node, "a process that still holds the pipe of a child that has ended")
        )
    if "loader_stop" in inner and "mp_join" in inner:
        return ending("other", node, "workers that torch ends, with a time limit for each")
    if any_tag(inner, "mp_join", "spawn_join"):
        return Edge("join_process", *workers.joined(history, job, node))
    if "file_lock" in inner:
        return _file(history, node)
    card = devices.edge(history, job, node)  # waits for a card look like a computation
    return None if card is None else Edge("gpu", *card)


def _file(history: History, node: Node) -> Edge:
    path = polling.path_of(history, node)
    return ending("file_poll", node, polling.in_words(history, node, path), detail=path)


def _by_descriptor(history: History, job: Job, node: Node) -> Edge | None:
    """Waits on an open file: what lies behind the descriptor decides."""
    files = workers.at_work_first(history, job, waited_on(history, node))
    edges = (_behind(history, job, node, node.wait, file) for file in files if node.wait is not None)
    return next((edge for edge in edges if edge is not None), None)


def _behind(history: History, job: Job, node: Node, wait: r.Wait, file: r.Descriptor) -> Edge | None:
    if file.kind == "tty" and gives(wait, file.fd):
        return ending("pipe_full", node, f"{file.target} to show what it writes", descriptor=file)
    if file.kind == "tty":
        return _terminal(node, file)
    if (child := workers.ends(history, job, node, file)) is not None:
        return Edge("child", *child)
    if file.kind in ("pipe", "fifo"):
        return _pipe(history, job, node, wait, file)
    if file.kind == "socket" and file.socket is not None:
        return _socket(history, job, node, wait, file, file.socket)
    if wait.kind == "lock":
        return _lock(node, file, file.lock_holders)
    if wait.kind in ("read", "write", "sync", "stat") and file.kind in ("file", "directory"):
        what = f"{wait.call} of {file.target} on {file.mount or 'a disk'}"
        return ending("storage", node, what, descriptor=file, detail=file.target)
    return None


def _terminal(node: Node, file: r.Descriptor) -> Edge:
    """A person types at the process' own terminal; any other one is a line to a device, or to another program."""
    if is_typed_at(file):
        return ending("input", node, f"input on {file.target}", descriptor=file)
    held = f", which pid {', '.join(map(str, file.other_side[:3]))} answers" if file.other_side else ""
    return ending("network", node, f"the other side of {file.target}{held}", descriptor=file, others=file.other_side)


def _lock(node: Node, file: r.Descriptor, owners: tuple[int, ...]) -> Edge:
    held = f", which pid {', '.join(map(str, owners))} holds" if owners else ""
    if owners == (node.pid,):
        opened = "opening" if node.wait and node.wait.forever else "connection"
        held = f", which another {opened} of its own process holds"
    told = f"a lock on {file.target}{held}"
    return ending("file_lock", node, told, descriptor=file, others=owners, detail=file.target)


def _socket(history: History, job: Job, node: Node, wait: r.Wait, file: r.Descriptor, socket: r.Socket) -> Edge | None:
    if other_end.is_store(history, job, node, socket):
        return ending("rendezvous", node, "a key in the store that was never set", descriptor=file, detail="store")
    if (ended := other_end.ended_user(history, job, node, socket)) is not None:
        return Edge("socket", f"pid {ended.pid}, which was at the other end of a pipe", (ended,))
    inside = tuple(pid for pid in socket.peer_pids if pid in job.members and pid != node.pid)
    if node.pid in socket.peer_pids:  # it kept that end open: who waits for it in turn has inherited the end as well
        inside = tuple(pid for pid in inside if not other_end.talks_to(history, node_of(history, job, pid), node.pid))
    if (
        node.pid in socket.peer_pids and not inside
    ):  # both ends are its own: a wake-up pipe, or a server in a thread of its own
        own = f"{wait.call} from a connection whose other end its own process holds (fd {file.fd})"
        return ending("network", node, own, descriptor=file) if wait.kind == "recv" else None
    sending = gives(wait, file.fd) and socket.state not in other_end.OPENING
    if inside:
        faces = other_end.facing(history, job, socket, inside)
        if faces is not None:
            answers = other_end.owing(history, job, faces) or (faces,)
            what = ", ".join(f"pid {one.pid} thread {one.name}" for one in answers)
            where = socket.local or socket.peer or f"a {socket.family} socket"
            return Edge("connection", f"{what} to {'take what it sends' if sending else 'send'} on {where}", answers)
        served = workers.behind_manager(history, job, node, inside)
        where = f"pid {inside[0]} at the other end of {socket.local or 'a socket'}"
        kind = "connection" if socket.family.startswith("tcp") else "socket"
        nodes = served or other_end.answering(history, job, inside)
        if kind != "connection" or any(one.motion.frozen is not False for one in nodes):
            return Edge(kind, where, nodes)
        # A server of the job's own that goes on serving: this connection is silent all the same.
    if socket.state == "LISTEN":
        return ending("network", node, f"a connection to {socket.local}", descriptor=file)
    what = other_end.takes(socket) if sending else f"{wait.call} from {socket.peer or 'a socket'}"
    return ending("network", node, what, descriptor=file, others=socket.peer_pids)


def _pipe(history: History, job: Job, node: Node, wait: r.Wait, pipe: r.Descriptor) -> Edge:
    writing = gives(wait, pipe.fd)
    far = pipe.readers if writing else pipe.writers
    inside = workers.at_pipe(history, job, node, far, writing)
    outside = tuple(pid for pid in far if pid != node.pid and pid not in job.members)
    verb, stream = "read" if writing else "write to", STREAMS.get(pipe.fd)
    name = f"{pipe.target} ({stream} of pid {node.pid})" if stream else pipe.target
    if not writing and (inside or not outside):
        within = other_end.writers(history, job, node, pipe, name, inside)
        if within is not None:
            return Edge("pipe", *within)
    if inside:
        what = f"pid {', '.join(map(str, inside))} to {verb} {name}"
        alone = None if writing else End("pipe_empty", node, descriptor=pipe)
        return Edge("pipe", what, _nodes(history, job, inside), otherwise=alone)
    kind = "pipe_full" if writing else "pipe_empty"
    who = f"pid {outside[0]}" if outside else "a process (no other process holds the other end)"
    return ending(kind, node, f"{who} to {verb} {name}", descriptor=pipe, others=outside)


def _nodes(history: History, job: Job, pids: tuple[int, ...]) -> tuple[Node, ...]:
    return tuple(node_of(history, job, pid) for pid in pids)


def _by_call(history: History, job: Job, node: Node) -> Edge | None:
    """Waits told by the system call, the state and who owns the GIL."""
    wait = node.wait
    holder = threads.gil_holder(history, node)
    if holder is not None:
        return Edge("gil", f"the GIL, held by thread {holder}", (node_of(history, job, node.pid, holder),))
    if wait is not None and wait.kind in ("open", "stat", "sync"):
        file = polling.opened(history, node)
        path = wait.path or "a file"
        if wait.kind == "open" and polling.is_fifo(node, file):
            what = f"a process to open the other end of {path}, a FIFO"
            return ending("pipe_empty", node, what, descriptor=file, detail=wait.path or "")
        return ending("storage", node, f"{wait.call} of {path}", descriptor=file, detail=wait.path or "")
    if wait is not None and wait.kind == "lock":
        return ending("file_lock", node, f"a file lock ({wait.path or 'unknown file'})", detail=wait.path or "")
    if (wait is not None and wait.kind == "page_fault") or node.state == "D":
        mapped = wait.path if wait is not None and wait.path else ""
        what = mapped or f"the kernel ({node.thread.wchan if node.thread else '?'})"
        return ending("uninterruptible", node, what, detail=mapped)
    if node.state == "R" or (node.motion.run_share or 0.0) > RUNS_SHARE:
        kind = "native" if threads.without_gil(history, node) else "python"
        return ending(kind, node, IT_RUNS)
    if wait is not None and wait.kind == "sleep":
        if (locked := polling.locked(history, node)) is not None:
            return _lock(node, *locked)
        if polling.polls_a_file(history, node):
            return _file(history, node)
        if polling.supervises(history, node) and (others := _supervised(history, job, node)):
            return Edge("supervised", f"pid {others[0].pid} thread {others[0].name}", others)
        return ending("sleep", node, _sleep(history, node, wait), detail=show(node.frame) or "")
    if wait is not None and wait.call in SIGNAL_WAITS:
        if others := _supervised(history, job, node):
            return Edge("supervised", f"pid {others[0].pid} thread {others[0].name}", others)
        return ending("sleep", node, "a signal", detail=show(node.frame) or "")
    if wait is not None and wait.kind in ("recv", "send", "connect", "accept"):
        return ending("network", node, f"{wait.call} on fd {wait.fd}")
    if wait is None or wait.kind in ("futex", "poll", "other"):
        waits_for, targets, end = threads.waits(history, job, node)
        brought = end is not None and end.kind == "lock" and awaited(node) not in HELD
        if brought and (found := workers.calling_back(history, job, node)) is not None:
            return Edge("pool", *found)
        return Edge("lock", waits_for, targets, end)
    return None


def _sleep(history: History, node: Node, wait: r.Wait) -> str:
    """What a thread waits for that sleeps: the end of this sleep, or of many short ones in turn."""
    if wait.remaining_seconds is None:
        return SLEEP
    wakes = motion(history, node.pid, node.tid, LATELY_SECONDS).switches_per_second
    every = 1.0 / wakes if wakes else float("inf")
    if wait.remaining_seconds <= 2 * every and every <= LONGEST_NAP_SECONDS:
        return f"{NAPS} (about every {duration(every)})"
    return f"{SLEEP}{SLEEP_LEFT}{duration(wait.remaining_seconds)}"


def _supervised(history: History, job: Job, node: Node) -> tuple[Node, ...]:
    """The threads, or else the processes, after which a loop of this thread asks."""
    inside = threads.worked_for(threads.other_threads(history, job, node))
    children = [m.pid for m in job.children(node.pid) if m.alive and m.role not in ("service", "worker")]
    return tuple(inside) or _nodes(history, job, tuple(children))


AT_ONCE_SECONDS = 0.1  # when each last ran is read to a few milliseconds; those that stop at one event are as close
MAX_DEPTH = 12  # longer chains exist only in loops
FEEDER = "feeder_join"  # tag of a process that waits at its end for what it put into a queue to be taken


@dataclass(frozen=True)
class Chain:
    """The way from one training thread to its end(s). ``through`` names the kinds of edge that were passed."""

    start: Node
    links: tuple[Link, ...]
    ends: tuple[End, ...]
    through: frozenset[str]

    @cached_property
    def end(self) -> End:
        """The end that matters: a dead or stopped one, then one that is still and not idle, then the one silent for longest.

        Of several that fell silent together the first on the way is it at every look.
        """
        rank = {"dead": 3, "stopped": 2, "cycle": -1, "idle": -1}
        weights = [(rank.get(end.kind, 0), end.still is True) for end in self.ends]
        alike = [end for end, weight in zip(self.ends, weights, strict=True) if weight == max(weights)]
        longest = max(end.silent_seconds or 0.0 for end in alike)
        return next(end for end in alike if (end.silent_seconds or 0.0) >= longest - AT_ONCE_SECONDS)

    @cached_property
    def awaited(self) -> str:
        """What the end that matters waits for, in words."""
        return self.said_of(self.end.node)

    def said_of(self, node: Node) -> str:
        """What one thread of the chain waits for; the last one, where it is not in it."""
        own = (link.waits_for for link in self.links if (link.pid, link.tid) == (node.pid, node.tid))
        return next(own, self.links[-1].waits_for)

    def culprits(self, same_kind: bool = True) -> tuple[Culprit, ...]:
        """Whom to name: every end of the kind that matters."""
        chosen = [e for e in self.ends if not same_kind or (e.kind == self.end.kind and e.still == self.end.still)]
        return tuple(culprit(e.node) for e in chosen)


def link(history: History, node: Node, waits_for: str, depth: int) -> Link:
    """A node as one step of the chain that is shown."""
    return Link(
        pid=node.pid,
        tid=node.tid,
        rank=node.rank,
        waits_for=waits_for,
        depth=depth,
        frame=show(node.frame),
        silent_seconds=silence(history, node),
    )


def follow(history: History, job: Job, pid: int, tid: int | None = None) -> Chain:
    """Walk from one thread to the end(s) of its wait."""
    start = node_of(history, job, pid, tid)
    links: list[Link] = []
    ends: list[End] = []
    through: set[str] = set()
    path: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()

    left_by: dict[
        tuple[int, int], str
    ] = {}  # by which kind of edge the way goes on from a thread; a feeder is known, not guessed

    def walk(node: Node) -> None:
        key = (node.pid, node.tid)
        if key in path:
            around = path[path.index(key) :]
            locked = [one for one in around if left_by[one] == "lock"]
            ends.append(_guessed(history, job, around, locked) or _cycle(history, job, node, around))
            return
        if key in seen:
            return  # another way led here before
        seen.add(key)
        edge = step(history, job, node)
        links.append(link(history, node, edge.waits_for, len(path)))
        if edge.end is None or edge.end.kind != edge.kind:
            through.add(edge.kind)
        if edge.end is not None or len(path) >= MAX_DEPTH:
            end = edge.end or End("unknown", node)
            ends.append(
                end if end.silent_seconds is not None else replace(end, silent_seconds=silence(history, end.node))
            )
            return
        path.append(key)
        left_by[key] = FEEDER if FEEDER in node.inner else edge.kind
        before = len(ends)
        for target in edge.targets:
            walk(target)
        path.pop()
        if edge.kind == REMOTE:  # any of them may be the one: only where all wait for each other nobody is left
            ends[before:] = [end for end in ends[before:] if end.kind != "cycle"] or ends[before:]
        if edge.otherwise is not None and _all_wait_for(node, ends[before:]):
            ends[before:] = [replace(edge.otherwise, silent_seconds=silence(history, node))]

    walk(start)
    ends = _without_victims(history, ends)
    return Chain(start, tuple(links), tuple(ends) or (End("unknown", start),), frozenset(through))


def _cycle(history: History, job: Job, node: Node, path: list[tuple[int, int]]) -> End:
    """Threads that wait for each other, for as long as the one that moved last.

    One that naps and asks after the next one moves, and stays where it is: what stands still is told by the others.
    """
    around = [node_of(history, job, *key) for key in path]
    known = [age for one in around if (age := silence(history, one)) is not None]
    still = next((one for one in around if one.motion.frozen), node) if node.naps else node
    return End("cycle", still, min(known, default=None))


def _guessed(history: History, job: Job, path: list[tuple[int, int]], locked: list[tuple[int, int]]) -> End | None:
    """A lock's owner is guessed: where the guess leads back to one who waits for this very thread, nobody is known to release it."""
    if not locked or len({pid for pid, _ in path}) < 2:
        return None
    last = node_of(history, job, *locked[-1])
    beside = tuple(tid for pid, tid in path if pid == last.pid and tid != last.tid)
    return End("lock", last, silence(history, last), others=beside) if waits_forever(last) else None


def _all_wait_for(node: Node, ends: list[End]) -> bool:
    """True if those who could help a thread wait for it themselves: they merely inherited the other end of its pipe."""
    locked = [end for end in ends if end.kind == "file_lock" and node.pid in end.others]
    return bool(locked) and all(end.kind == "cycle" or end in locked for end in ends)


def _without_victims(history: History, ends: list[End]) -> list[End]:
    """Who waits for a file lock is no end where its owner is one, nor who waits for any where one waits for what it holds itself."""
    locked = [end for end in ends if end.kind == "lock"]
    own = [end for end in locked if takes_again(history, end.node)] if len(locked) > 1 else []
    ends = [end for end in ends if end not in locked or end in own or not own]
    pids = {end.node.pid for end in ends if end.kind not in ("file_lock", "cycle")}
    rest = [end for end in ends if end.kind != "file_lock" or not end.others or not pids.issuperset(end.others)]
    return rest or ends
