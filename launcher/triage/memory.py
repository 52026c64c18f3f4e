"""What the kernel remembers about a job whose training thread runs: since when has nothing else of it moved?

A loop that burns CPU leaves no trace of when it began, but its neighbours do: DataLoader workers with full queues last ran
when the last batch was taken; a log file last grew when the last line was written.
"""

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.frames import any_tag, tags
from perfwatch.triage.job import Member
from perfwatch.triage.node import Node
from perfwatch.triage.profile import TRAINING_TAGS
from perfwatch.triage.verdict import Evidence


def since_training(case: Case, rank: Member) -> float:
    """Seconds since the training thread was last seen in training code; since it was first looked at, if never."""
    seen = case.profile(rank).sights
    if not seen:
        return 0.0
    for one in reversed(seen):
        if any_tag(tags(one.reading), *TRAINING_TAGS):
            return case.at - one.at
    return case.at - (seen[0].at - seen[0].reading.span_seconds)


def quiet_seconds(case: Case, node: Node) -> tuple[float, tuple[Evidence, ...]]:
    """Seconds since the job last moved on, by the youngest of its memories; 0 and nothing where there is none."""
    ages: list[tuple[float, Evidence]] = []
    for worker in case.job.workers(node.pid):
        seen = case.history.latest(r.Thread, worker.pid, worker.pid)
        if worker.alive and seen is not None and seen.reading.ran_ago_seconds is not None:
            age = seen.reading.ran_ago_seconds + case.at - seen.at
            ages.append(
                (
                    age,
                    case.saw(
                        "worker",
                        f"pid {worker.pid}",
                        "the worker's queue is full: no batch was taken",
                        f"last ran {age:.0f} s ago (kernel)",
                        "runs for each batch",
                        seen.at,
                    ),
                )
            )
    if not ages:
        return 0.0, ()
    youngest = min(ages, key=lambda one: one[0])
    return youngest[0], (youngest[1],)
