"""The wait graph of a case, from the edges of the wait chains: which module of ``claims`` answers for which kind of wait."""

from collections.abc import Callable

from perfwatch.triage.case import Case
from perfwatch.triage.graph.activity import ThreadActivity, activity_of
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.claims import collectives, descriptors, gpu, locks, processes, threads
from perfwatch.triage.graph.model import Activity, Basis, Fate, Prospect, Role, Task
from perfwatch.triage.graph.thresholds import DEADLINE_SECONDS, RATIONED_SECONDS, WATCHED_SECONDS
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES
from perfwatch.triage.ranks.calls import Calls
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import EVENT_LOOP, NATIVE_WAIT, Node, silence

Adds = Callable[[Builder, Task, Node, Edge, ThreadActivity], None]

BY_KIND: dict[str, Adds] = {
    "lock": locks.lock,
    "pipe_empty": descriptors.pipe,
    "pipe_full": descriptors.pipe,
    "file_lock": descriptors.file_lock,
    "file_poll": descriptors.awaited_file,
    "network": descriptors.connection,
    "rendezvous": descriptors.store_key,
    "gpu": gpu.gpu,
    "sleep": threads.sleeping,
    "python": threads.running,
    "native": threads.running,
    "idle": processes.idle,
    "dead": processes.ended_child,
    "other": threads.other,
    "unknown": descriptors.unknown_or_eventfd,
}
GOES_ON = (
    "gpu",
    "collective",
    "rendezvous",
    "python",
    "native",
)  # waits in which a thread runs again and again, and is no further


def wait_graph_of(case: Case) -> Builder:
    """Build and solve."""
    return case.history.once(("wait graph",), lambda: _built(case))


def in_call(case: Case, chain: Chain) -> bool:
    """True if a rank is in a call with others, whatever shows it: its stack, its card, a recorder or RAS."""
    return chain.start.pid in wait_graph_of(case).calls.by_pid


def _built(case: Case) -> Builder:
    built = Builder(case)
    calls = built.calls = collectives.calls_of(built)
    waits = [silence(built.history, built.node(built.starts[pid])) or 0.0 for pid in calls.by_pid]
    built.others_waited = min(waits, default=0.0)
    if calls.by_pid:
        for pid in built.starts:
            built.rank(pid)
    while built.todo:
        task = built.graph.tasks[built.todo.pop()]
        if task.activity is Activity.PROCESS:
            processes.process(built, task, task.pid)
        else:
            _thread(built, calls, task)
    built.graph.solve()
    return built


def _thread(built: Builder, calls: Calls, task: Task) -> None:
    node = built.node(task.key)
    seen = activity_of(built.case, node)
    task.silence, task.activity = seen.silence, seen.state
    built.seen[task.key] = seen
    if seen.state in (Activity.GONE, Activity.STOPPED):
        silent = seen.silence.seconds if seen.silence is not None else 0.0
        rationed = seen.recurrent and silent < RATIONED_SECONDS
        task.fate = Fate(Prospect.OPEN if rationed else Prospect.SETTLED, why=f"it is {seen.state.value}")
        return
    if node.pid in calls.by_pid and built.starts[node.pid] == task.key:
        collectives.group_call(built, calls, task, node.pid)
        return
    edge, kind = built.edge(task.key), built.edge_kind(task.key)
    moves = seen.recurrent and kind not in GOES_ON and node.motion.frozen is not True
    still = seen.silence is not None and seen.silence.is_bounded and seen.silence.seconds > WATCHED_SECONDS
    still = still or task.key in built.starts.values() or threads.reads_for_ever(built, node, kind)
    data = seen.work.data >= ARRIVING_BYTES and not still
    leads_on = bool(edge.targets) and not (edge.kind == "lock" and _is_futex(node))
    if seen.state is Activity.RUNS and kind not in GOES_ON and not edge.targets:
        task.fate = Fate(Prospect.LIVE, works=seen.work.sign, why="it runs")
        return
    if leads_on:
        processes.other_tasks(built, task, node, edge)
    else:
        _waits(built, calls, task, node, edge, kind, seen)
    if moves or data:  # it gets one after the other of what it waits for
        works, why = (
            (seen.work.cores if leads_on else seen.work.sign),
            "it moves now and then" if moves else "data moves",
        )
        leaf = built.lives(("moves", node.pid, node.tid), works, why, Activity.RUNS)
        for resource in task.waits[:1]:
            built.graph.claim(leaf, resource, Role.PROVIDES, Basis.KERNEL)
        task.fate = None if task.waits else built.graph.tasks[leaf].fate
    if not edge.targets or EVENT_LOOP in node.inner or _has_long_deadline(node):
        alone = kind == "pipe_empty" and edge.end is not None and not edge.end.others
        threads.own_deadline(built, task, node, seen, alone)


def _has_long_deadline(node: Node) -> bool:
    """True if a wait for other tasks ends by itself, and is no poll of a library, which looks again for the same thing."""
    wait = node.wait
    if wait is None or wait.remaining_seconds is None:
        return False
    return wait.remaining_seconds + (node.motion.ran_ago_seconds or 0.0) >= DEADLINE_SECONDS


def _is_futex(node: Node) -> bool:
    return node.wait is not None and node.wait.kind in ("futex", "poll", "other")


def _waits(built: Builder, calls: Calls, task: Task, node: Node, edge: Edge, kind: str, seen: ThreadActivity) -> None:
    kind = "lock" if edge.kind == "lock" and kind in ("lock", NATIVE_WAIT) else kind
    blind = seen.state is Activity.UNKNOWN or (node.stack is None and kind == "lock")
    if blind:
        threads.unknown(built, task, node, edge, seen)
    elif kind in descriptors.OUTER:
        descriptors.outer(built, task, kind)
    elif kind == "collective":
        collectives.of_another_thread(built, calls, task, node, edge, seen)
    else:
        BY_KIND.get(kind, threads.unknown)(built, task, node, edge, seen)
