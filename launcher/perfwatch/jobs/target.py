"""Find the job of any PID. The process at its top must exist, be visible to us, and run Python somewhere below."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.errors import NoSuchTarget, NotATrainingJob, PermissionDenied
from perfwatch.recording.redaction import redact_command
from perfwatch.triage.job import launches
from perfwatch_probes import readings as r
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Absent, Denied, Filesystem
from perfwatch_probes.lineage import lineage
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import children_of, ended, identify, scan, tree
from perfwatch_probes.stat import parse_pairs

WORKER_NAME = "pt_data_worker"  # torch's name for a DataLoader worker
# Launchers that are not Python: all ranks of this node are their children.
LAUNCHERS = frozenset(
    "mpirun mpiexec mpiexec.hydra orterun orted prterun prte prted hydra_pmi_proxy pmi_proxy pmix_server srun slurmstepd"
    " flux-shell".split()
)
RAYLET = "raylet"  # Ray's own process above the actors and tasks of a machine
_SPAWNED = re.compile(r"multiprocessing\.(?:spawn|forkserver)|--multiprocessing-fork")
OUR_HELPERS = "perfwatch-"
LIST_ADVICE = "perfwatch ps lists the training jobs of this machine"


@dataclass(frozen=True)
class Target:
    """A job on this machine.

    Attributes:
        root: the process at its top.
        asked: the one that the user named.
        program: the first Python among them. Its command line names the job: of a shell or of mpirun only the name is known.
        gone: how it ended, if it is a zombie that its parent has not reaped.
    """

    root: r.Process
    asked: r.Process
    program: r.Process
    gone: r.ProcessEnded | None = None


def exists(pid: int) -> bool:
    """True if there is such a process, seen in /proc or not: no permission is needed, and no signal is sent."""
    try:
        os.close(os.pidfd_open(pid))
    except (OSError, OverflowError):
        return False
    return True


def find_job(
    filesystem: Filesystem,
    pid: int,
    child: Caller,
    exists: Callable[[int], bool] = exists,
    own_pid: Callable[[], int] = os.getpid,
) -> Target:
    """The job that a process belongs to.

    Args:
        filesystem: where /proc is.
        pid: a launcher, a rank, a worker, one of their threads, or a shell above them.
        child: where reads that may block are made.
        exists: whether a process is there although /proc does not show it.
        own_pid: who we are: below the shell that is named, we and our helpers are no part of the job.

    A zombie is a job of its own that has ended, unless its parent trains: then that one is the job.

    Raises NoSuchTarget for a pid that is not there or the zombie of a job that goes on, NotATrainingJob when nothing in the tree is
    Python, PermissionDenied when /proc hides the process.
    """
    asked, gone = _asked(filesystem, pid, child, exists)
    if gone is not None:
        _refuse_part(filesystem, asked, gone, child)
        return Target(asked, asked, asked, gone)
    if asked.name.startswith(OUR_HELPERS):
        raise NotATrainingJob(f"process {pid} ({asked.name}) is a helper of perfwatch itself", LIST_ADVICE)
    root = root_of(filesystem, asked, child)
    try:
        children = children_of(scan(filesystem))
        members = [one for one in tree(filesystem, root.pid, children | {own_pid(): []}) if one != own_pid()]
    except Unavailable:
        members = []
    processes = (_identified(filesystem, one, child) for one in members)
    program = next((process for process in processes if process is not None and process.python), None)
    if program is None:
        if _gone(filesystem, asked):
            raise NoSuchTarget(f"process {pid} ({asked.name}) ended during the check", LIST_ADVICE)
        raise NotATrainingJob(f"nothing in the process tree of {pid} ({asked.name}) is Python", LIST_ADVICE)
    return Target(root, asked, program)


def root_of(filesystem: Filesystem, process: r.Process, child: Caller) -> r.Process:
    """The process at the top of the job that this one is of."""
    *_, top = lineage(process, lambda one: _above(filesystem, one, child))
    return top


def starter(filesystem: Filesystem, process: r.Process, child: Caller) -> r.Process:
    """The process that started the top of a job through multiprocessing, torch or not; else that top itself."""
    try:
        parent = identify(filesystem, process.parent_pid, child, redact_command)
    except (Unavailable, ValueError):
        return process
    return parent if parent.python and _kin(process, parent) else process


def _asked(
    filesystem: Filesystem, pid: int, child: Caller, exists: Callable[[int], bool]
) -> tuple[r.Process, r.ProcessEnded | None]:
    try:
        process = identify(filesystem, _leader(filesystem, pid), child, redact_command)
        gone = ended(filesystem, process)
    except Denied as why:
        raise PermissionDenied(f"process {pid} is hidden from this user: {why.reason}", why.advice) from None
    except Absent:
        if exists(pid):
            raise PermissionDenied(
                f"process {pid} exists, but /proc hides it (mounted with hidepid)", f"sudo perfwatch attach {pid}"
            ) from None
        raise NoSuchTarget(f"no process {pid}", LIST_ADVICE) from None
    except (Unavailable, ValueError) as why:  # it ended between two reads
        raise NoSuchTarget(f"no process {pid}: {why}", LIST_ADVICE) from None
    if gone is not None and not gone.zombie:
        raise NoSuchTarget(f"process {pid} ({process.name}) ended during the check", LIST_ADVICE)
    return process, gone


def _refuse_part(filesystem: Filesystem, process: r.Process, gone: r.ProcessEnded, child: Caller) -> None:
    """Refuse a zombie whose parent trains: it was a worker of a job that goes on."""
    try:
        parent = identify(filesystem, process.parent_pid, child, redact_command)
    except (Unavailable, ValueError):
        return
    if parent.torch_loaded:
        raise NoSuchTarget(
            f"process {process.pid} ({process.name}) is a zombie: it has ended ({_how(gone)}) and its parent {parent.pid} has not "
            "reaped it",
            f"perfwatch attach {parent.pid}",
        )


def _leader(filesystem: Filesystem, pid: int) -> int:
    """The process that a thread belongs to (top -H and py-spy show thread ids); a process is its own."""
    return int(parse_pairs(filesystem.read_text(f"{filesystem.proc}/{pid}/status")).get("Tgid", pid))


def _how(gone: r.ProcessEnded) -> str:
    if gone.signal:
        return f"killed by signal {gone.signal}"
    return "exit code not visible" if gone.exit_code is None else f"exit code {gone.exit_code}"


def _gone(filesystem: Filesystem, process: r.Process) -> bool:
    try:
        return ended(filesystem, process) is not None
    except Unavailable:
        return True


def _above(filesystem: Filesystem, process: r.Process, child: Caller) -> r.Process | None:
    """The parent, if it belongs to the same job: torch is loaded in it (torchrun, a rank above its worker), or it is a
    launcher.

    Of another user's process only the command line tells: a forked worker has its parent's, a spawned one says so.
    """
    if process.parent_pid == 0:  # pid 1 is init on a host, but torchrun or the rank itself in a container
        return None
    try:
        parent = identify(filesystem, process.parent_pid, child, redact_command)
    except (Unavailable, ValueError):
        return None
    if parent.name in LAUNCHERS:
        return parent
    if parent.name == RAYLET:  # below it are the actors of one program, where that has started it itself
        return parent if _has_a_driver(filesystem, parent, child) else None
    if process.name == RAYLET:
        return parent if parent.python else None
    if not parent.python:
        return None
    if launches(parent):
        return parent
    kin = _kin(process, parent)
    if parent.torch_loaded is None:
        return parent if kin and process.command else None
    placed = process.rank is not None and process.rank != parent.rank  # a launcher above gave it its place
    # A Python program of its own below a notebook or a test runner that happens to use torch is a job of its own.
    return parent if parent.torch_loaded and (kin or placed or not process.python) else None


def _kin(process: r.Process, parent: r.Process) -> bool:
    """True if multiprocessing made it of its parent."""
    forked = process.command == parent.command or process.name.startswith(WORKER_NAME)
    return forked or any(_SPAWNED.search(word) for word in process.command)


def _has_a_driver(filesystem: Filesystem, raylet: r.Process, child: Caller) -> bool:
    """True if a program started a Ray of its own; the raylet of a cluster has the actors of many programs."""
    driver = _identified(filesystem, raylet.parent_pid, child) if raylet.parent_pid > 0 else None
    return driver is not None and driver.python


def _identified(filesystem: Filesystem, pid: int, child: Caller) -> r.Process | None:
    try:
        return identify(filesystem, pid, child, redact_command)
    except (Unavailable, ValueError):
        return None
