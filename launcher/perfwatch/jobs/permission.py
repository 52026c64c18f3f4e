"""Refuse a job whose memory we may not read before anything else is looked at: of stacks and waits nothing could be said."""

import os
import pwd

from perfwatch.errors import PermissionDenied
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.ptrace_access import Access, access, explain

DEADLINE_SECONDS = 1.0
OWN_SAMPLER = "PERFWATCH_PY_SPY"  # may have a capability that we have not


def open_once(path: str) -> None:
    """Open a file of a process: ``mem`` asks the kernel what py-spy will ask. Runs in a killable child; raises OSError if denied."""
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def refuse_unreadable(filesystem: Filesystem, child: Caller, pid: int, command: str, file: str = "mem") -> None:
    """Raise PermissionDenied where the memory of a process may not be read, or its environment, which asks for less.

    Args:
        filesystem: where /proc is.
        child: where reads that may block are made.
        pid: a Python process of the job.
        command: ours, as it would have to be typed as root.
        file: ``mem`` or ``environ``.
    """
    if file == "mem" and os.environ.get(OWN_SAMPLER):
        return
    try:
        child.call(open_once, str(filesystem.proc / str(pid) / file), deadline_seconds=DEADLINE_SECONDS)
    except PermissionError:
        facts = access(pid, filesystem.proc)
    except (OSError, Unavailable):
        return  # it ended, or is sick: what follows will say so
    else:
        return
    raise PermissionDenied(*_refusal(pid, facts, command))


def _refusal(pid: int, facts: Access, command: str) -> tuple[str, str]:
    other = facts.target_uid is not None and facts.target_uid != facts.our_uid
    without = f"or without stacks and waits: {command} --without-stacks" if " attach " in command else ""
    if other and facts.our_uid and facts.yama_scope != 3:
        contained = (
            "in a container, it needs CAP_SYS_PTRACE too: docker run --cap-add SYS_PTRACE ..."
            if facts.in_container
            else ""
        )
        return (
            f"permission denied: pid {pid} belongs to {user_name(facts.target_uid)}",
            "\n".join(filter(None, (f"sudo {command}", contained, without))),
        )
    why = explain(pid, facts)
    return f"permission denied: {why.reason}", "\n".join(filter(None, (why.advice, without)))


def user_name(uid: int | None) -> str:
    """The name of a user, or the number where it has none."""
    if uid is None:
        return "unknown"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
