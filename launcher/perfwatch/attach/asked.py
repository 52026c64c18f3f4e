"""The process that a command is about, from what was typed: a PID at once, all else by a look at this machine."""

import os
import sys
from pathlib import Path
from typing import Annotated

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.options import Number, Option

HIGHEST_PID = 2**22  # PID_MAX_LIMIT of the kernel
WHICH = "Which job, where it is not a PID"
Slurm = Annotated[
    int | None,
    Option(
        "--slurm",
        metavar="JOBID",
        kind=Number(1, whole=True, likely="4711"),
        panel=WHICH,
        setting=False,
        help="The job of this Slurm job here.",
    ),
]
Pod = Annotated[
    str | None, Option("--pod", metavar="NAME|UID", panel=WHICH, setting=False, help="The job in this Kubernetes pod.")
]
Container = Annotated[
    str | None, Option("--container", metavar="ID|NAME", panel=WHICH, setting=False, help="The job in this container.")
]


def process(
    target: str | None,
    slurm: int | None = None,
    pod: str | None = None,
    container: str | None = None,
    command: str = "perfwatch attach",
) -> int:
    """The PID that is meant; says on stderr which one was chosen.

    Args:
        target: a PID, a part of a command line, or a session; None: the only job.
        slurm: the number of a Slurm job.
        pod: the name or uid of a pod.
        container: the beginning of a container's id, or its name.
        command: what is advised.

    Raises:
        NoSuchTarget: there is none.
        UsageError: there are several, or several ways to name it were used.
    """
    ways = {"a target": target, "--slurm": slurm, "--pod": pod, "--container": container}
    used = [name for name, value in ways.items() if value is not None]
    if len(used) > 1:
        raise UsageError(f"{' and '.join(used)}: name the job in one way", f"{command} {used[1]} ...")
    if target is not None and target.isascii() and target.isdecimal():
        pid = int(target)
        if not 0 < pid <= HIGHEST_PID or not _there(pid):
            advice = _of_recorded(pid) or "perfwatch ps lists the training jobs of this machine"
            raise NoSuchTarget(f"no process {target}", advice)
        return _watched_by(pid)
    from perfwatch.jobs.chosen import Wanted, choose, id_by_name
    from perfwatch.jobs.known import Knowledge
    from perfwatch.text import say
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem
    from perfwatch_probes.guest import Guests

    child, guests = KillableChild(), Guests()
    try:
        wanted = Wanted(target or "", slurm, pod or "", container or "")
        known = Knowledge(guests).of
        pid, told = choose(wanted, Filesystem(), child, os.environ, command, id_by_name, known)
    finally:
        child.close()
        guests.close()
    if told:
        say(sys.stderr, told)
    return pid


def may_be_read(pid: int, command: str) -> bool:
    """True if our user may read the memory of this process. A root's daemon may still know a job of our own user that may not.

    Raises PermissionDenied for the job of another user, before what takes a second to load.
    """
    from perfwatch.errors import PermissionDenied
    from perfwatch.jobs.permission import refuse_unreadable
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem

    filesystem, child = Filesystem(), KillableChild()
    try:
        refuse_unreadable(filesystem, child, pid, command)
    except PermissionDenied:
        from perfwatch.jobs.discovery import refuse_orphan
        from perfwatch.jobs.target import find_job

        target = find_job(filesystem, pid, child)
        refuse_orphan(target, filesystem, child)
        if target.gone is None and target.program.uid != os.geteuid():
            refuse_unreadable(filesystem, child, target.program.pid, command)
        return False
    finally:
        child.close()
    return True


def _of_recorded(pid: int) -> str:
    """What to type for a job that has ended, where it was recorded; empty where it was not."""
    from perfwatch.recording.finding import after_the_end
    from perfwatch_probes.deadline import KillableChild

    child = KillableChild()
    try:
        return after_the_end(lambda one: pid in one.root_pids, os.environ, child)
    finally:
        child.close()


def _watched_by(pid: int) -> int:
    """The job that a process of perfwatch watches; as it is every other process, and the launcher of a job."""
    from perfwatch.processes.control import find_watcher, find_watcher_of_helper, is_our_own
    from perfwatch.text import say
    from perfwatch.top.asking import root_of

    if not is_our_own(pid) or find_watcher(pid) is not None:
        return pid
    root = root_of(find_watcher_of_helper(pid))
    if root is None:
        return pid
    say(sys.stderr, f"process {pid} is a part of perfwatch; it watches pid {root}")
    return root


def _there(pid: int) -> bool:
    """True if there is such a process or thread; /proc may hide it."""
    if Path(f"/proc/{pid}").exists():
        return True
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
        return False
    return True
