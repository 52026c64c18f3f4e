"""The sentences about a settled wait: what a task is blocked on, and why nothing can release it."""

from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import Activity, Key, Kind, Resource, Task
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.frames import show

AWAITED = {
    Kind.LOCK: "a lock",
    Kind.BARRIER: "a barrier",
    Kind.CONDITION: "a condition or an event",
    Kind.QUEUE: "an item or room in a queue",
    Kind.JOIN: "the end of a thread",
    Kind.NATIVE: "a call of native code",
    Kind.UNKNOWN: "something that perfwatch cannot see",
    Kind.POOL: "a result of a worker",
    Kind.CHILD: "a child process",
    Kind.GIL: "the GIL",
    Kind.CALL: "a remote call",
    Kind.PIPE: "a pipe",
    Kind.EVENTFD: "an eventfd",
    Kind.FILE_LOCK: "a lock on a file",
    Kind.FILE: "a file",
    Kind.DISK: "a disk",
    Kind.SOCKET: "a connection",
    Kind.STORE: "a key of the store",
    Kind.GROUP_CALL: "other ranks in a collective",
    Kind.MISMATCH: "a collective that the other ranks did not call",
    Kind.FABRIC: "data of other ranks",
    Kind.GPU: "a GPU",
    Kind.PROCESS: "a process",
    Kind.RANK: "a rank",
    Kind.TERMINAL: "terminal input",
    Kind.DRIVER: "the GPU driver",
    Kind.FLAG: "a flag that it polls",
    Kind.LOOP: "the end of a loop",
    Kind.TIMER: "a timer",
    Kind.TASKS: "new tasks",
}
SHOWN = 3


def named(node: Node) -> str:
    """A thread as the subject of a sentence."""
    rank = f"rank {node.rank}, " if node.rank is not None else ""
    thread = "main thread" if node.tid == node.pid else f"thread {node.name or node.tid}"
    return f"{rank}{thread} of pid {node.pid}"


def said_of(built: Builder, task: Task) -> str:
    """A task in few words."""
    if task.kind == "thread":
        return named(built.node(task.key))
    if task.activity is Activity.CARD:
        return f"GPU {task.key[1]}"
    return f"{'rank' if task.activity is Activity.RANK else 'process'} {task.key[1]}"


def blocked_on(built: Builder, task: Task) -> str:
    """What a sink does: ``main thread of pid 12 is blocked on a lock at fit (train.py:3)``."""
    node = built.nodes.get(task.key)
    place = f" at {show(node.frame)}" if node is not None and node.frame is not None else ""
    if task.waits:
        return f"{said_of(built, task)} is blocked on {AWAITED[task.waits[0].kind]}{place}"
    return f"{said_of(built, task)} {does(built, task)}{place}"


def does(built: Builder, task: Task) -> str:
    """What a task does that waits for no other one."""
    if task.activity is Activity.GONE:
        return "has ended"
    if task.activity is Activity.STOPPED:
        return "is stopped"
    if task.activity is Activity.SLEEPS:
        return "is in a sleep of more than 10 min"
    if task.activity is Activity.CARD:
        return "executes a kernel that moves no data"
    return "makes no progress"


def why_settled(built: Builder, task: Task) -> str:
    """Why nothing releases a sink: each possible releaser, and what keeps it."""
    if task.fate is not None and not task.waits:
        return f"it {does(built, task)}"
    claims = [key for resource in task.waits for key in built.graph.claims.get(resource, {})]
    others = [built.graph.tasks[key] for key in claims if key != task.key]
    if not others:
        return "no other thread or process can reach it"
    shown = "; ".join(_kept(built, other) for other in others[:SHOWN])
    return shown + (f"; and {len(others) - SHOWN} more that are blocked" if len(others) > SHOWN else "")


def _kept(built: Builder, task: Task) -> str:
    """A releaser, and what it waits for itself."""
    if task.activity in (Activity.PROCESS, Activity.RANK):
        inner = [
            built.graph.tasks[claim.task] for resource in task.waits for claim in built.graph.known_claims(resource)
        ]
        return (
            "; ".join(blocked_on(built, one) for one in inner[:1]) or f"{said_of(built, task)} has no thread that runs"
        )
    return blocked_on(built, task)


def resource_named(resource: Resource | None) -> str:
    """A resource in words."""
    return "nothing" if resource is None else AWAITED[resource.kind]


def pid_of(task: Task) -> int | None:
    """The process of a thread, or of a task that is one."""
    if task.pid:
        return task.pid
    key: Key = task.key
    return key[1] if task.kind == "gone" and isinstance(key[1], int) else None
