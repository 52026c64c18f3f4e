"""Since when a job has not trained, as its log, its compute pool, its files and its other ranks remember it.

A wait that leaves no trace of its beginning (a thread that polls, or runs) is as old as that.
"""

from collections.abc import Iterable

from perfwatch.triage.case import Case
from perfwatch.triage.graph.activity import waits_for_its_object
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import Activity, Kind, Resource, Task
from perfwatch.triage.moving.logs import unwritten
from perfwatch.triage.moving.memory import missed, quiet
from perfwatch.triage.waits.node import silence
from perfwatch.triage.waits.other_end import open_seconds
from perfwatch.triage.waits.polling import sought

Sink = tuple[Task, Resource | None]


def is_traceless(sinks: Iterable[Sink]) -> bool:
    """True if a sink does not show when it began to wait."""
    return any(
        task.activity in (Activity.POLLS, Activity.RUNS)
        or (resource is not None and resource.kind in (Kind.UNKNOWN, Kind.STORE))
        for task, resource in sinks
    )


def remembered(case: Case, built: Builder, pid: int, sinks: Iterable[Sink]) -> list[float]:
    """Seconds, one for each thing that remembers."""
    rank = case.job.members[pid]
    node = built.node(built.starts[pid])
    trained = quiet(case, rank)
    found = [trained.seconds if trained.evidence else unwritten(case, rank)[0], missed(case, rank).seconds]
    for task, resource in sinks:
        if resource is not None and resource.kind is Kind.FILE and task.kind == "thread":
            found.append(_file_seconds(case, task, resource))
        if resource is not None and resource.kind is Kind.STORE:
            found.append(case.history.once(("store open",), lambda: open_seconds(case.history, case.job) or 0.0))
    if waits_for_its_object(node):
        found.append(silence(case.history, node) or 0.0)
    return found


def _file_seconds(case: Case, task: Task, resource: Resource) -> float:
    """Since when the awaited file has not changed."""
    path = resource.key[1]
    seen = sought(case.history, task.pid, path) if isinstance(path, str) else None
    if seen is None or seen.reading.changed_ago_seconds is None:
        return 0.0
    return seen.reading.changed_ago_seconds + case.at - seen.at
