"""The other process trees of a job, and the ranks of it that cannot be watched together with it."""

from collections.abc import Iterable
from dataclasses import dataclass

from perfwatch.errors import NoSuchTarget
from perfwatch.jobs.discovery import FoundJob, doubles, find_jobs, job_below, refuse_several
from perfwatch.jobs.target import Target, find_job
from perfwatch.triage.job import Job
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import tree
from perfwatch_probes.readings import ProbeCall, Process

RANKS = "ranks"  # how this witness is called in a verdict
MOST_NAMED = 8


@dataclass(frozen=True)
class Relatives:
    """``tops``: of the job's other trees. ``unseen``: why ranks of it are not seen, or not told apart; nothing where all are."""

    tops: tuple[int, ...] = ()
    unseen: tuple[ProbeCall, ...] = ()


def relatives(filesystem: Filesystem, child: Caller, target: Target) -> Relatives:
    """Of the job at whose top a process stands, or that is below it."""
    found, hidden = find_jobs(filesystem, child)
    try:
        members = set(tree(filesystem, target.root.pid))
    except Unavailable:
        members = {target.root.pid}
    own = next((one for one in found if members.intersection(top.pid for top in one.tops)), None)
    if own is None:
        return Relatives()
    tops = tuple(top.pid for top in own.tops)
    twice = [two for other in found if other is not own for two in doubles(filesystem, own, other)]
    unseen = [*_twice(own, twice), *_hidden(own, own.among(hidden), target.asked.pid)]
    return Relatives(tuple(pid for pid in tops if pid not in members), tuple(unseen))


def job_around(filesystem: Filesystem, pid: int, child: Caller) -> Job:
    """Who is who now in the job that a process belongs to, its other trees included.

    Raises NoSuchTarget, NotATrainingJob and PermissionDenied as ``find_job`` does, UsageError where several jobs are below it.
    """
    target = find_job(filesystem, pid, child)
    if target.gone is not None:
        raise NoSuchTarget(f"process {pid} has ended", f"perfwatch attach {pid}")
    refuse_several(filesystem, child, target)
    job = job_below(filesystem, child, [target.root.pid])
    here = max((rank.process.local_world_size or 0 for rank in job.ranks), default=0) or job.world_size or 1
    if not job.numbered or len(job.ranks) >= here:
        return job
    others = relatives(filesystem, child, target).tops  # a look at every process of the machine
    return job_below(filesystem, child, [target.root.pid, *others]) if others else job


def _twice(own: FoundJob, twice: list[tuple[int, int, int]]) -> Iterable[ProbeCall]:
    if twice:
        named = "; ".join(f"rank {rank}: pid {here} and {there}" for rank, here, there in twice[:MOST_NAMED])
        reason = f"ranks exist twice, with the same master {own.identity.master}: {named}"
        yield _call(reason, "start each process with a RANK of its own")


def _hidden(own: FoundJob, hidden: tuple[Process, ...], pid: int) -> Iterable[ProbeCall]:
    """Only where ranks are missing: who runs the same program may as well be another training."""
    if hidden and not own.job.covered:
        pids = ", ".join(str(one.pid) for one in hidden[:MOST_NAMED])
        users = ", ".join(sorted({str(one.uid) for one in hidden}))
        reason = f"{len(hidden)} processes that run the job's program may not be looked into: pid {pids} of uid {users}"
        yield _call(reason, f"sudo perfwatch attach {pid}")


def _call(reason: str, advice: str) -> ProbeCall:
    return ProbeCall(
        probe=RANKS,
        entity=reason.split(" ", 1)[0],
        duration_seconds=0.0,
        outcome="unavailable",
        reason=reason,
        advice=advice,
    )
