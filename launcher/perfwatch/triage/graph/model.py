"""The AND/OR wait graph: tasks, resources, claims, and the one fixpoint that says whether a wait can still end.

A task either has a fate of its own (it runs, sleeps until a moment, has exited) or waits for resources, of which one is
enough. A resource needs any of the tasks that claim it, or all of them. Every task that can release a wait is a claim. A
releaser that cannot be seen is not a claim; a resource says with ``complete`` that every possible releaser is among its claims.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from itertools import count

from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE

# For how long something has not moved, how that is known, and the one rule for combining it along a chain of waits.
#
# Four sources differ in what they exclude. The kernel remembers the last run of a thread; a wait that only its object can end has
# lasted since then. An observed move says when the thread last did something. A thread that was only watched has not moved since the
# first sample; it may have stood long before. The job remembers when it last trained: a log, a compute pool, other ranks that wait.


class Source(IntEnum):
    """How the silence is known."""

    WATCHED = 0  # since the first sample
    REMEMBERED = 1  # by the job: log, compute pool, others that wait
    OBSERVED = 2  # since a move that was seen
    KERNEL = 3  # since the last run, which only the awaited object can have ended


@dataclass(frozen=True, order=True)
class Silence:
    """Seconds without a move."""

    seconds: float
    source: Source = Source.WATCHED

    @property
    def is_bounded(self) -> bool:
        """True if something is known to have moved when it began: it is no longer than that."""
        return self.source in (Source.OBSERVED, Source.KERNEL)


NOT_SILENT = Silence(0.0, Source.WATCHED)


def along(sinks: Iterable[Silence], start: Silence | None, changed: Silence | None, step: Silence | None) -> Silence:
    """The silence of a wait: the least of its sinks, but no longer than since its start is known to have moved, or made a step.

    A start that was only watched bounds nothing: it may have waited long before. Without a sink that was seen, the start's own counts.
    """
    found = list(sinks) or ([start] if start is not None else [])
    bounds = [one for one in (changed, step) if one is not None and one.is_bounded]
    return min([*found, *bounds], default=NOT_SILENT)


def at_least(silence: Silence, remembered: Iterable[float]) -> Silence:
    """Where the sinks leave no trace of when they began to wait (they poll, or run): what the job remembers, if that is longer."""
    return max(silence, Silence(max(remembered, default=0.0), Source.REMEMBERED))


Key = tuple[object, ...]  # begins with what it is: ("thread", pid, tid)


class Prospect(IntEnum):
    """What can become of a wait, the worst first."""

    SETTLED = 0  # no task that could release it will
    OPEN = 1  # something may release it, and nothing shows that it will
    DUE = 2  # a task that may release it wakes at a known moment
    LIVE = 3  # a task works for it


class Basis(IntEnum):
    """What a claim rests on, the weakest first."""

    ELIMINATION = 0  # every other task was ruled out
    TEXT = 1  # names in the source
    STACK = 2  # functions of CPython and torch
    KERNEL = 3  # /proc, counters, the GPU


class Role(IntEnum):
    """What a task has to do with a resource."""

    HOLDS = 0
    PROVIDES = 1
    MAY_PROVIDE = 2  # a possible releaser: only real work of it counts as a sign of life


class Needs(Enum):
    """How many of the claims a resource needs."""

    ANY = "any"
    ALL = "all"


class Activity(Enum):
    """What a task does."""

    RUNS = "runs"
    POLLS = "polls"
    SLEEPS = "sleeps"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    GONE = "gone"
    UNKNOWN = "unknown"
    PROCESS = "process"  # not one thread
    RANK = "rank"
    CARD = "card"
    WORK = "work"  # a counter that grows: CPU time, bytes


class Kind(Enum):
    """The kind of a resource, and what a task is blocked on that waits for one."""

    LOCK = "a lock"
    BARRIER = "a barrier"
    CONDITION = "a condition or an event"
    QUEUE = "an item or room in a queue"
    JOIN = "the end of a thread"
    NATIVE = "a call of native code"
    UNKNOWN = "something that perfwatch cannot see"
    POOL = "a result of a worker"
    CHILD = "a child process"
    GIL = "the GIL"
    CALL = "a remote call"
    PIPE = "a pipe"
    EVENTFD = "an eventfd"
    FILE_LOCK = "a lock on a file"
    FILE = "a file"
    DISK = "a disk"
    SOCKET = "a connection"
    STORE = "a key of the store"
    GROUP_CALL = "other ranks in a collective"
    MISMATCH = "a collective that the other ranks did not call"
    FABRIC = "data of other ranks"
    GPU = "a GPU"
    PROCESS = "a process"
    RANK = "a rank"
    TERMINAL = "terminal input"
    DRIVER = "the GPU driver"
    FLAG = "a flag that it polls"
    LOOP = "the end of a loop"
    TIMER = "a timer"
    TASKS = "new tasks"


class Unseen(str):
    """Why not every possible releaser of a resource is known, in words. How long such a wait is given depends on the class."""

    __slots__ = ()


class Unread(Unseen):
    """Something was not read. A later look may read it."""

    __slots__ = ()


class Unsampled(Unread):
    """What runs, and was sampled too seldom so far: the next looks tell, and no rule calls a rank hung before them."""


class Stale(Unread):
    """A thread that stood was not sampled lately."""

    __slots__ = ()


class Acts(Unseen):
    """One that is no thread of Python's may act at any time, or never."""

    __slots__ = ()


class NativeCode(Unseen):
    """It waits in native code. Of a thread that others wait for that is as if it acted at any time."""

    __slots__ = ()


class Elsewhere(Unseen):
    """A process that perfwatch does not follow: outside of the job, or at the other end of a connection."""

    __slots__ = ()


class AnswerDue(Unseen):
    """A probe was asked and has not answered yet."""

    __slots__ = ()


class Ends(Enum):
    """How a loop ends."""

    COUNTS = "counts"
    CONDITION = "tests a condition"
    NEVER = "never"
    ONE_CALL = "one call"  # no loop: one C call does not return
    UNREAD = "unread"


@dataclass(frozen=True)
class Fate:
    """A prospect, until when, and the weakest basis on the way to it."""

    prospect: Prospect
    basis: Basis = Basis.KERNEL
    until: float = float("inf")  # DUE: when
    works: float = 0.0  # cores, or 1.0 where bytes move; DUE: 1.0 if the wait is over then
    why: str = ""
    by: Key | None = None  # LIVE and DUE of a wait: the task that releases it
    strangers: bool = False  # OPEN: a task outside of the job may release it, seen or not

    @property
    def order(self) -> tuple[float, float, int]:
        """The better fate sorts higher; of equal ones the one with the stronger basis."""
        within = {Prospect.DUE: -self.until, Prospect.LIVE: self.works}.get(self.prospect, 0.0)
        return (self.prospect, within, self.basis)


@dataclass(frozen=True)
class Resource:
    """What is waited for. ``complete``: every possible releaser is among the claims; else ``why`` not."""

    kind: Kind
    key: Key
    needs: Needs = Needs.ANY
    complete: bool = True
    why: str = ""
    basis: Basis = Basis.KERNEL  # of the knowledge that this is what is waited for, and of ``complete``
    until: float | None = None  # the wait ends by itself at that moment
    sure: float = 0.0  # 1.0: the wait is over then; 0.0: what follows is not known
    strangers: bool = False  # a task outside of the job may release it, seen or not


@dataclass(frozen=True)
class Claim:
    """A task that can release a resource."""

    task: Key
    role: Role
    basis: Basis


@dataclass
class Task:
    """A thread, a process, a card, or a rank on another host. Its key begins with what it is: ``("thread", pid, tid)``."""

    key: Key
    fate: Fate | None = None  # None: it waits
    waits: tuple[Resource, ...] = ()
    activity: Activity = Activity.UNKNOWN
    silence: Silence | None = None
    member: Key | None = None  # the task that stands for it in a call that needs all members
    ends: Ends | None = None  # of the loop that it is in
    pid: int = 0  # of a thread or process
    tid: int = 0  # of a thread

    @property
    def kind(self) -> object:
        """The first part of its key: thread, process, rank, card, work, gone, ..."""
        return self.key[0]


def seen_through(claim: Claim, fate: Fate) -> Fate:
    """A fate as it counts through a claim.

    A task that only may provide must do real work to be a sign of life, and a moment at which it wakes is no promise.
    """
    basis = min(fate.basis, claim.basis)
    if claim.role is Role.MAY_PROVIDE and fate.prospect is Prospect.LIVE and fate.works < SIGN_OF_LIFE:
        return Fate(Prospect.OPEN, basis, works=fate.works, why=fate.why or "other threads wake up now and then")
    if claim.role is Role.MAY_PROVIDE and fate.prospect is Prospect.DUE:
        return replace(fate, basis=basis, works=0.0)
    return replace(fate, basis=basis, strangers=fate.strangers and claim.role is not Role.MAY_PROVIDE)


# Of a walk: a task, the resource over which it was reached, whether the way goes on.
Step = tuple["Task", "Resource | None", bool]


class WaitGraph:
    """Tasks and claims, and what follows from them.

    ``solve`` visits each claim once, from the best fates to the worst, so a wait gets its fate from the best releaser that it has.
    Whatever no fate has reached then is SETTLED: a cycle without a live exit among it.
    """

    def __init__(self) -> None:
        self.tasks: dict[Key, Task] = {}
        self.claims: dict[Resource, dict[Key, Claim]] = defaultdict(dict)
        self.fates: dict[Key, Fate] = {}
        self.resources: dict[Resource, Fate] = {}
        self.operations = 0  # claims and waits that the last ``solve`` looked at
        self._walks: dict[tuple[tuple[Resource, ...], Prospect], tuple[bool, tuple[Step, ...], frozenset[Key]]] = {}

    def claim(self, task: Key, resource: Resource, role: Role, basis: Basis) -> None:
        """A task can release this resource. The first claim of a task on a resource stands."""
        self.claims[resource].setdefault(task, Claim(task, role, basis))

    def is_new(self, resource: Resource) -> bool:
        """True for the first call about a resource that many tasks wait for: its claims are made once."""
        if resource in self.claims:
            return False
        self.claims[resource] = {}
        return True

    def solve(self) -> None:
        """Give every task its fate."""
        self._walks.clear()
        _Solution(self).run()
        self._settle()

    def _settle(self) -> None:
        """What is left is SETTLED; its basis is the weakest of all claims that had to be asked for that."""
        settled = {key: task for key, task in self.tasks.items() if key not in self.fates}
        asks: dict[Key, set[Resource]] = defaultdict(set)  # by task: the settled resources that rest on it
        waiters: dict[Resource, list[Key]] = defaultdict(list)
        weakest: dict[Basis, list[Key]] = defaultdict(list)
        for key, task in settled.items():
            if task.fate is not None:
                weakest[task.fate.basis].append(key)
            for resource in task.waits:
                waiters[resource].append(key)
        own: dict[Resource, Basis] = {}
        for resource in waiters:
            own[resource] = resource.basis
            for claim in self.claims.get(resource, {}).values():
                self.operations += 1
                if claim.task in settled:
                    own[resource] = min(own[resource], claim.basis)
                    asks[claim.task].add(resource)
        for resource, keys in waiters.items():
            weakest[own[resource]] += keys
        for basis in Basis:
            todo = weakest[basis]
            while todo:
                key = todo.pop()
                if key in self.fates:
                    continue
                fate = settled[key].fate
                self.fates[key] = fate if fate is not None else Fate(Prospect.SETTLED, basis)
                for resource in asks[key]:
                    if resource not in self.resources:
                        self.resources[resource] = Fate(Prospect.SETTLED, basis)
                        todo += waiters[resource]
        for key in settled:
            self.fates.setdefault(key, Fate(Prospect.SETTLED))

    def known_claims(self, resource: Resource) -> Iterator[Claim]:
        """Claims of tasks that hold or provide a resource, without those that only may."""
        return (one for one in self.claims.get(resource, {}).values() if one.role is not Role.MAY_PROVIDE)

    def sinks(self, start: Key) -> list[tuple[Task, Resource | None]]:
        """Where a wait ends: the tasks that no other task blocks, and what those wait for."""
        found = [
            (task, task.waits[0] if task.waits else last) for task, last, leads_on in self._steps(start) if not leads_on
        ]
        task = self.tasks[start]
        return found or [(task, task.waits[0] if task.waits else None)]  # a cycle

    def releasers(self, start: Key) -> list[Task]:
        """From one task to the one whose work or waking gives it its fate: who releases it, who releases that one, and so on."""
        found: list[Task] = []
        key: Key | None = start
        while key is not None and self.tasks[key] not in found:
            found.append(self.tasks[key])
            key = self.fates[key].by
        return found

    def reachable(self, *starts: Key) -> list[Task]:
        """Some tasks and all that may release their waits, directly or over others, by claims of any role."""
        found: dict[Key, None] = dict.fromkeys(starts)
        entered: set[Resource] = set()
        for key in (todo := [*starts]):
            for resource in set(self.tasks[key].waits) - entered:
                entered.add(resource)
                new = [one for one in self.claims.get(resource, {}) if one not in found]
                found.update(dict.fromkeys(new))
                todo += new
        return [self.tasks[key] for key in found]

    def way(self, start: Key) -> list[tuple[Task, Resource | None]]:
        """The tasks on the way from one task to its sinks, each with the resource over which it was reached."""
        return [(task, last) for task, last, _ in self._steps(start)]

    def _steps(self, start: Key) -> list[Step]:
        """The walk from one task. Tasks that wait for the same, and are not on the way themselves, share what lies behind it."""
        task, best = self.tasks[start], self.fates[start].prospect
        known = self._walks.get((task.waits, best))
        if known is not None and start not in known[2]:
            return [(task, None, known[0]), *known[1]]
        steps, returns = self._walk(start, best)
        if not returns:
            self._walks[task.waits, best] = (
                steps[0][2],
                tuple(steps[1:]),
                frozenset(one.key for one, _, _ in steps[1:]),
            )
        return steps

    def _walk(self, start: Key, best: Prospect) -> tuple[list[Step], bool]:
        """Depth first over holders and providers; each resource is entered once. Also whether the way returns to its start."""
        seen: set[Key] = set()
        steps: list[Step] = []
        returns = False
        entered: dict[Resource, list[Key]] = {}
        todo: list[tuple[Key, Resource | None]] = [(start, None)]
        while todo:
            key, last = todo.pop()
            if key in seen:
                continue
            seen.add(key)
            at = self.fates[key].prospect
            onward: list[Key] = []
            further: list[tuple[Key, Resource | None]] = []
            for resource in self.tasks[key].waits:
                if resource not in entered:
                    targets = [
                        one.task
                        for one in self.known_claims(resource)
                        if self.fates[one.task].prospect <= max(best, at)
                    ]
                    returns = returns or start in targets
                    entered[resource] = targets
                    further += [(one, resource) for one in targets]
                onward += [one for one in entered[resource][:2] if one != key]
            todo += reversed(further)
            steps.append((self.tasks[key], last, bool(onward)))
        return steps, returns


class _Solution:
    """One run of the fixpoint: fates are final in the order from the best to the worst (Knuth's version of Dijkstra's search)."""

    def __init__(self, graph: WaitGraph) -> None:
        self.graph = graph
        graph.fates, graph.resources, graph.operations = {}, {}, 0
        self.waiters: dict[Resource, list[Key]] = defaultdict(list)
        self.claimed: dict[Key, list[Resource]] = defaultdict(list)
        self.left: dict[Resource, int] = {}  # of resources that need ALL: claims without a fate
        self.worst: dict[Resource, Fate] = {}
        self.heap: list[tuple[tuple[float, ...], int, Fate, Key | None, Resource | None]] = []
        self.order = count()

    def run(self) -> None:
        """Read the graph once, then take fate after fate."""
        for key, task in self.graph.tasks.items():
            if task.fate is not None:
                self._push(task.fate, key)
            elif not task.waits:
                self._push(Fate(Prospect.OPEN, Basis.ELIMINATION, why="not known what it waits for"), key)
            for resource in task.waits if task.fate is None else ():
                self.waiters[resource].append(key)
        for resource in self.waiters:
            self._start(resource)
        while self.heap:
            _, _, fate, whose, about = heapq.heappop(self.heap)
            if whose is not None:
                self._finish_task(whose, fate)
            elif about is not None and about not in self.graph.resources:
                self.graph.resources[about] = fate
                self._tell(self.waiters[about], about, fate)

    def _start(self, resource: Resource) -> None:
        if resource.until is not None:
            self._push(Fate(Prospect.DUE, resource.basis, resource.until, resource.sure), None, resource)
        if not resource.complete:
            fate = Fate(Prospect.OPEN, resource.basis, why=resource.why, strangers=resource.strangers)
            self._push(fate, None, resource)
        claims = self.graph.claims.get(resource, {})
        for key in claims:
            self.graph.operations += 1
            self.claimed[key].append(resource)
        if resource.needs is Needs.ALL:
            self.left[resource] = len(claims)

    def _finish_task(self, key: Key, fate: Fate) -> None:
        if key in self.graph.fates or fate.prospect is Prospect.SETTLED:
            return
        self.graph.fates[key] = fate
        for resource in self.claimed[key]:
            self.graph.operations += 1
            through = replace(seen_through(self.graph.claims[resource][key], fate), by=key)
            if resource.needs is Needs.ANY:
                self._push(through, None, resource)
            else:
                self._one_of_all(resource, through)

    def _one_of_all(self, resource: Resource, fate: Fate) -> None:
        worst = self.worst.get(resource)
        self.worst[resource] = worst = fate if worst is None or fate.order < worst.order else worst
        self.left[resource] -= 1
        if self.left[resource] == 0:
            self._push(worst, None, resource)
        elif self.left[resource] == 1:  # a member of the call does not wait for itself
            last = next(key for key in self.graph.claims[resource] if key not in self.graph.fates)
            own = [key for key in self.waiters[resource] if last in (key, self.graph.tasks[key].member)]
            self.graph.operations += len(self.graph.claims[resource])
            self._tell(own, resource, worst)

    def _tell(self, keys: Iterable[Key], resource: Resource, fate: Fate) -> None:
        for key in keys:
            self.graph.operations += 1
            if key not in self.graph.fates:
                self._push(replace(fate, basis=min(fate.basis, resource.basis)), key)

    def _push(self, fate: Fate, key: Key | None, resource: Resource | None = None) -> None:
        if fate.prospect is not Prospect.SETTLED:
            heapq.heappush(self.heap, (tuple(-one for one in fate.order), next(self.order), fate, key, resource))
