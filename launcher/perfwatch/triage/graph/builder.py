"""Grows the wait graph: tasks are made when a claim names them, and each is asked once what it waits for."""

from collections.abc import Collection
from dataclasses import replace
from math import inf

from perfwatch.triage.case import Case
from perfwatch.triage.graph.activity import ThreadActivity, activity_of
from perfwatch.triage.graph.model import (
    Activity,
    Basis,
    Elsewhere,
    Ends,
    Fate,
    Key,
    Kind,
    Prospect,
    Resource,
    Role,
    Silence,
    Source,
    Task,
    Unread,
    WaitGraph,
)
from perfwatch.triage.graph.thresholds import BYTES_SECONDS, FRESH_SECONDS
from perfwatch.triage.moving.loops import Loop, loop_of, moves_data
from perfwatch.triage.moving.memory import has_trained, quiet, since_training
from perfwatch.triage.moving.motion import gil_passed_at, motion, python_threads
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES, RUNS_SHARE, STIRS_SHARE
from perfwatch.triage.moving.work import data_of, received, waited_on
from perfwatch.triage.patience import long_timeout, temporal
from perfwatch.triage.ranks.calls import Calls
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES
from perfwatch.triage.shares.thresholds import NEARLY_ALL
from perfwatch.triage.waits.chain import Edge, step
from perfwatch.triage.waits.devices import spin_for_cards
from perfwatch.triage.waits.node import RUNS, End, Node, node_of
from perfwatch.triage.waits.threads import carries, gil_waiters, of_gloo, other_threads
from perfwatch_probes import readings as r

NOT_SAMPLED = Unread("it was not sampled")
OUTSIDE = Elsewhere("a process outside of the job")
PASSES = ("forward", "backward", "optimizer", "scaler", "collective")
OTHER_WORK = ("pickling", "save", "load", "compile", "import", "http", "group_destroy", "exit")
STARTED_BEFORE = 1.0  # seconds of the session, within which a process that has ended may have ended before


class Builder:
    """The graph of one case, from the training threads of its ranks as far as the claims lead."""

    def __init__(self, case: Case) -> None:
        self.case, self.history, self.job = case, case.history, case.job
        self.graph = WaitGraph()
        self.nodes: dict[Key, Node] = {}
        self.seen: dict[Key, ThreadActivity] = {}
        self.loops: dict[Key, Loop] = {}
        self.todo: list[Key] = []  # tasks that were not asked yet
        self._edges: dict[Key, Edge] = {}
        self.calls = Calls()  # in which call each rank is
        self.starts: dict[int, Key] = {
            rank.pid: self.thread(rank.pid, case.progress[rank.pid].thread) for rank in case.ranks
        }

    def thread(self, pid: int, tid: int) -> Key:
        """A thread as a task."""
        return self._added(("thread", pid, tid), Activity.UNKNOWN, pid, tid)

    def process(self, pid: int) -> Key:
        """A process: any of its threads, or of its children, may do what is expected of it."""
        return self._added(("process", pid), Activity.PROCESS, pid)

    def _added(self, key: Key, activity: Activity, pid: int, tid: int = 0) -> Key:
        if key not in self.graph.tasks:
            self.graph.tasks[key] = Task(key, activity=activity, pid=pid, tid=tid)
            self.todo.append(key)
        return key

    def rank(self, pid: int) -> Key:
        """A rank that others wait for in a call: its training thread is expected there, another thread of it may come."""
        key: Key = ("rank", pid)
        if key not in self.graph.tasks:
            resource = Resource(Kind.RANK, key)
            self.graph.tasks[key] = Task(key, waits=(resource,), activity=Activity.RANK)
            start = self.starts[pid]
            self.graph.claim(start, resource, Role.PROVIDES, Basis.STACK)
            self.claim_other_threads(resource, self.node(start), Basis.ELIMINATION)
            if why := self._works_for_the_others(pid):
                leaf = self.lives(("passes", pid), 1.0, why, Activity.RUNS)
                self.graph.claim(leaf, resource, Role.PROVIDES, Basis.STACK)
        return key

    def _works_for_the_others(self, pid: int) -> str:
        """What a training thread that runs is at, if the ranks that wait for it get that one day: no step of its own. Else empty."""
        node = self.node(self.starts[pid])
        if self.edge_kind(self.starts[pid]) not in RUNS:
            return ""
        seen = self.case.profile(self.job.members[pid], FRESH_SECONDS)
        if seen.samples < ENOUGH_SAMPLES:
            return ""
        if seen.seen(*PASSES):
            return "it runs passes of a model"
        if seen.seen(*OTHER_WORK):
            return "it saves, loads or compiles"
        loads = seen.share("loader") >= NEARLY_ALL  # a loader may read for ever, and give no batch
        return "it moves data" if moves_data(self.history, node) and not loads else ""

    def leaf(self, key: Key, fate: Fate, activity: Activity) -> Key:
        """A task whose fate is known."""
        if key not in self.graph.tasks:
            self.graph.tasks[key] = Task(key, fate, activity=activity)
        return key

    def gone(self, pid: int) -> Key:
        """A process that has ended."""
        key = self.leaf(("gone", pid), Fate(Prospect.SETTLED, why="it has ended"), Activity.GONE)
        self.graph.tasks[key].silence = self.since_end(pid)
        return key

    def since_end(self, pid: int) -> Silence | None:
        """Since a process ended; None if it had when the session began: then its age is not known."""
        ended = self.history.series(r.ProcessEnded, pid)
        known = bool(ended) and ended[0].at > STARTED_BEFORE
        return Silence(self.case.at - ended[0].at, Source.OBSERVED) if known else None

    def lives(self, key: Key, works: float, why: str, activity: Activity = Activity.WORK) -> Key:
        """Something that works."""
        return self.leaf(key, Fate(Prospect.LIVE, works=works, why=why), activity)

    def node(self, key: Key) -> Node:
        """What is known of a thread that is a task."""
        if key not in self.nodes:
            task = self.graph.tasks[key]
            self.nodes[key] = node_of(self.history, self.job, task.pid, task.tid)
        return self.nodes[key]

    def edge(self, key: Key) -> Edge:
        """Where the wait of a thread leads."""
        if key not in self._edges:
            self._edges[key] = step(self.history, self.job, self.node(key))
        return self._edges[key]

    def edge_kind(self, key: Key) -> str:
        """The kind of its end, or of the way to other tasks."""
        edge = self.edge(key)
        return edge.end.kind if edge.end is not None else edge.kind

    def is_sampled(self, pid: int) -> bool:
        """True if anything of a process was read, beyond that it is there."""
        return any(self.history.of(kind, pid) for kind in (r.Thread, r.ProcessUsage, r.Stack))

    def matters(self, pid: int) -> bool:
        """True if a process was sampled, or has just started, so that it will be. What was never sampled was left out on purpose."""
        if self.is_sampled(pid):
            return True
        looks = self.history.series(r.Process, pid)
        age = looks[0].reading.age_seconds if looks else None
        return age is not None and age + self.case.at - looks[0].at < FRESH_SECONDS

    def waited_seconds(self, pid: int) -> float:
        """For how long the training thread of a process' rank has made no step, as far as the job remembers; 0 of a stranger."""
        rank = self._rank_of(pid)
        return 0.0 if rank is None else self.history.once(("waited", rank.pid), lambda: self._waited_seconds(rank))

    def _rank_of(self, pid: int) -> Member | None:
        member = self.job.members.get(pid)
        rank = self.job.members.get(member.rank_pid or pid) if member is not None else None
        return rank if rank is not None and rank.pid in self.starts else None

    def _waited_seconds(self, rank: Member) -> float:
        seen = activity_of(self.case, self.node(self.starts[rank.pid]))
        blocked = seen.silence is not None and seen.state is not Activity.RUNS and has_trained(self.case, rank)
        waits = seen.silence.seconds if blocked and seen.silence is not None else 0.0
        return max(since_training(self.case, rank), quiet(self.case, rank).seconds, waits)

    def nothing_came_of(self, pid: int) -> bool:
        """True if the rank of a process has trained, and has made no step for five hang timeouts. Preparation may take hours."""
        rank = self._rank_of(pid)
        trained = rank is not None and has_trained(self.case, rank)
        return trained and self.waited_seconds(pid) >= long_timeout(self.case)

    @property
    def hang_timeout(self) -> float:
        """Of the session, and no less than three times the longest step of this run."""
        return temporal(self.case)

    def loop(self, key: Key, node: Node) -> Loop:
        """Find and keep the loop that a task is in.

        A training thread that keeps the GIL from threads that ask for it is in one call: a loop of Python passes it on, and counts.
        """
        loop = loop_of(self.history, node)
        if key in self.starts.values() and loop.ends is Ends.COUNTS and self._keeps_gil(node):
            loop = replace(loop, ends=Ends.UNREAD)
        self.loops[key] = loop
        self.graph.tasks[key].ends = loop.ends
        return loop

    def _keeps_gil(self, node: Node) -> bool:
        never_passed = gil_passed_at(self.history, node.pid, node.tid) == -inf
        return never_passed and bool(gil_waiters(self.history, self.job, node))

    # who may release it

    def claim_other_threads(
        self,
        resource: Resource,
        node: Node,
        basis: Basis,
        but: Collection[tuple[int, int]] = (),
        with_carriers: bool = False,
    ) -> None:
        """The other Python threads of a process may provide it, and so may all native ones together.

        Threads that wait for a card that only polls spin without work: they are left out. So are those that carry messages between
        ranks, unless it is such a message that is waited for.
        """
        for other in other_threads(self.history, self.job, node):
            if (other.pid, other.tid) in but:
                continue
            self.graph.claim(self.thread(other.pid, other.tid), resource, Role.MAY_PROVIDE, basis)
        known = {*python_threads(self.history, node.pid), *spin_for_cards(self.history, self.job, node.pid), node.tid}
        natives = {tid for _, tid in self.history.of(r.Thread, node.pid) if tid not in known}
        mute = {tid for tid in natives if of_gloo(self.history, node.pid, tid)}
        if not with_carriers:
            mute |= {tid for tid in natives if carries(self.history, node.pid, tid)}
        works = {tid: self._native_work(node.pid, tid) for tid in natives - mute}
        moved = data_of(self.history, node.pid, list(works)) if works else 0.0
        if (total := max(sum(works.values()), 1.0 if moved >= ARRIVING_BYTES else 0.0)) > STIRS_SHARE:
            busiest = max(works, key=lambda tid: (works[tid], -tid))
            leaf = self.lives(("native", node.pid, busiest), total, "native threads run", Activity.RUNS)
            self.graph.claim(leaf, resource, Role.MAY_PROVIDE, basis)
        for tid in works:
            # It may read through a mapping: neither CPU time nor bytes show that.
            if motion(self.history, node.pid, tid).state == "D":
                reads = Fate(Prospect.OPEN, why=Unread("a native thread waits for a disk"))
                self.graph.claim(
                    self.leaf(("reads", node.pid, tid), reads, Activity.BLOCKED), resource, Role.MAY_PROVIDE, basis
                )

    def _native_work(self, pid: int, tid: int) -> float:
        """Of a core, what it gets and what it would like to get."""
        seen = motion(self.history, pid, tid)
        met = RUNS_SHARE if seen.state == "R" else 0.0  # sampled once
        return met if seen.run_share is None else seen.run_share + (seen.delay_share or 0.0)

    def claim_ranks(self, resource: Resource) -> None:
        """Any rank, or what it has started, may provide it. One task stands for all, so that the graph grows with the ranks alone."""
        key: Key = ("ranks",)
        if key not in self.graph.tasks:
            ranks = Resource(Kind.RANK, key)
            self.graph.tasks[key] = Task(key, waits=(ranks,), activity=Activity.RANK)
            for pid, start in self.starts.items():
                self.graph.claim(start, ranks, Role.MAY_PROVIDE, Basis.ELIMINATION)
                self.claim_other_threads(ranks, self.node(start), Basis.ELIMINATION)
                self.claim_descendants(ranks, pid)
        self.graph.claim(key, resource, Role.MAY_PROVIDE, Basis.ELIMINATION)

    def claim_collective(self, resource: Resource) -> None:
        """The end of a collective may provide it, for which all ranks must come; one task stands for it."""
        key: Key = ("collective",)
        if key not in self.graph.tasks:
            call = Resource(Kind.GROUP_CALL, key)
            self.graph.tasks[key] = Task(key, waits=(call,), activity=Activity.RANK)
            for pid in self.starts:
                self.graph.claim(self.rank(pid), call, Role.MAY_PROVIDE, Basis.ELIMINATION)
        self.graph.claim(key, resource, Role.MAY_PROVIDE, Basis.ELIMINATION)

    def claim_ranks_at_work(self, resource: Resource) -> None:
        """A rank that runs in a loop which may come to an end makes no step, but may make what others wait for beside it."""
        key: Key = ("ranks at work",)
        if key not in self.graph.tasks:
            ranks = Resource(Kind.RANK, key)
            self.graph.tasks[key] = Task(key, waits=(ranks,), activity=Activity.RANK)
            for pid, start in self.starts.items():
                node, kind = self.node(start), self.edge_kind(start)
                ends = loop_of(self.history, node).ends
                if self.case.progress[pid].kind == "busy" and kind == "python" and ends in (Ends.COUNTS, Ends.UNREAD):
                    leaf = self.lives(("work", pid), node.motion.run_share or RUNS_SHARE, f"pid {pid} works")
                    self.graph.claim(leaf, ranks, Role.MAY_PROVIDE, Basis.ELIMINATION)
        self.graph.claim(key, resource, Role.MAY_PROVIDE, Basis.ELIMINATION)

    def claim_arriving(self, resource: Resource, node: Node) -> None:
        """Bytes that arrive on what a thread waits on are work for it."""
        for fd in waited_on(self.history, node.pid, node.tid, BYTES_SECONDS):
            rate = self.history.rate(r.Descriptor, node.pid, fd, of=received, seconds=BYTES_SECONDS) or 0.0
            if rate >= ARRIVING_BYTES:
                self.claim_bytes(resource, ("bytes", node.pid, fd), "bytes arrive")

    def claim_bytes(self, resource: Resource, key: Key, why: str) -> None:
        """Bytes that pass on a connection are work for the thread that waits there."""
        self.graph.claim(self.lives(key, 1.0, why), resource, Role.PROVIDES, Basis.KERNEL)

    def claim_pair_holders(self, resource: Resource, node: Node) -> None:
        """Claim the holders of the other end of a socket pair that a thread waits on: any process that inherited it may write."""
        for fd in waited_on(self.history, node.pid, node.tid, BYTES_SECONDS):
            seen = self.history.latest(r.Descriptor, node.pid, fd)
            socket = seen.reading.socket if seen is not None else None
            for pid in socket.peer_pids if socket is not None and socket.family == "unix" else ():
                if pid != node.pid:
                    self.graph.claim(self.process(pid), resource, Role.MAY_PROVIDE, Basis.KERNEL)

    def claim_descendants(self, resource: Resource, pid: int) -> None:
        """What a process has started may provide it."""
        for child in self.job.descendants(pid):
            if child.alive and child.role not in ("service", "rank") and self.matters(child.pid):
                self.graph.claim(self.process(child.pid), resource, Role.MAY_PROVIDE, Basis.ELIMINATION)


def end_of(edge: Edge) -> End:
    """The end of a way that is known to have one."""
    if edge.end is None:
        raise ValueError(f"the way over {edge.kind} leads on")
    return edge.end
