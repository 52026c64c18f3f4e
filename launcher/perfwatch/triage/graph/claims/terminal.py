"""Terminal input, a driver, a disk: nothing of the job releases these."""

from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import Kind, Resource, Task

# by kind of end: the resource, and whether the job is known to hold no releaser
OUTER = {
    "input": (Kind.TERMINAL, True),
    "driver": (Kind.DRIVER, True),
    "storage": (Kind.DISK, False),
    "uninterruptible": (Kind.DISK, False),
}


def outer(built: Builder, task: Task, kind: str) -> None:
    """No task provides it."""
    resource, complete = OUTER[kind]
    why = "" if complete else "a disk may answer"
    task.waits = (Resource(resource, task.key, complete=complete, why=why),)
