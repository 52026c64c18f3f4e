"""From any PID of a job to the job: its root process, checked to be there, to be Python somewhere, and to be ours to look at."""

from dataclasses import dataclass

from perfwatch.errors import NoSuchTarget, NotATrainingJob
from perfwatch.probes import readings as r
from perfwatch.probes.deadline import Caller
from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.process import children_of, ended, identify, tree
from perfwatch.redaction import redact

# Launchers that are not Python: all ranks of this node are their children.
LAUNCHERS = frozenset("mpirun mpiexec orterun prterun prte hydra_pmi_proxy pmix_server srun slurmstepd".split())


@dataclass(frozen=True)
class Target:
    """A job on this machine: the process at its top, and the one that the user named."""

    root: r.Process
    asked: r.Process


def find_job(filesystem: Filesystem, pid: int, child: Caller) -> Target:
    """The job that a process belongs to.

    Args:
        filesystem: where /proc is.
        pid: a launcher, a rank, a worker, or a shell above them.
        child: where reads that may block are made.

    Raises NoSuchTarget for a pid that is not there or a zombie, NotATrainingJob when nothing in the tree is Python.
    """
    asked = _identify(filesystem, pid, child)
    root = asked
    while (above := _above(filesystem, root, child)) is not None:
        root = above
    if not any(_is_python(filesystem, one, child) for one in tree(filesystem, root.pid, children_of(filesystem))):
        raise NotATrainingJob(
            f"nothing in the process tree of {pid} ({asked.name}) is Python",
            "perfwatch ps lists the training jobs of this machine",
        )
    return Target(root, asked)


def _identify(filesystem: Filesystem, pid: int, child: Caller) -> r.Process:
    try:
        process = identify(filesystem, pid, child, redact)
        gone = ended(filesystem, process)
    except Unavailable as why:
        raise NoSuchTarget(f"no process {pid}: {why.reason}", "perfwatch ps lists the training jobs of this machine") from None
    if gone is not None:
        how = f"killed by signal {gone.signal}" if gone.signal else f"exit code {gone.exit_code}"
        raise NoSuchTarget(
            f"process {pid} ({process.name}) is a zombie: it has ended ({how}) and its parent {process.parent_pid} has not reaped it",
            f"perfwatch attach {process.parent_pid}",
        )
    return process


def _above(filesystem: Filesystem, process: r.Process, child: Caller) -> r.Process | None:
    """The parent, if it belongs to the same job: it has torch loaded (torchrun, a rank above its worker), or is a launcher."""
    if process.parent_pid <= 1:
        return None
    try:
        parent = identify(filesystem, process.parent_pid, child, redact)
    except Unavailable:
        return None
    if parent.name in LAUNCHERS or (parent.python and parent.torch_loaded):
        return parent
    return None


def _is_python(filesystem: Filesystem, pid: int, child: Caller) -> bool:
    try:
        return identify(filesystem, pid, child, redact).python
    except Unavailable:
        return False
