"""The process that a command is about, from what was typed: a PID at once, all else by a look at this machine."""

import os
import sys
from pathlib import Path

from perfwatch.errors import NoSuchTarget, UsageError

HIGHEST_PID = 2**22  # PID_MAX_LIMIT of the kernel


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
        raise UsageError(f"{' and '.join(used)}: a job is named in one way", f"{command} {used[1]} ...")
    if target is not None and target.isascii() and target.isdecimal():
        pid = int(target)
        if not 0 < pid <= HIGHEST_PID or not _there(pid):
            raise NoSuchTarget(f"no process {target}", "perfwatch ps lists the training jobs of this machine")
        return pid
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


def _there(pid: int) -> bool:
    """True if there is such a process or thread; /proc may hide it."""
    if Path(f"/proc/{pid}").exists():
        return True
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
        return False
    return True
