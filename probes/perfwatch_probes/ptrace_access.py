"""Why the kernel forbids us to read another process' memory, and the exact command that would allow it.

Reading memory (py-spy, /proc/PID/mem, /proc/PID/syscall) needs PTRACE_MODE_ATTACH: the same user and a Yama scope that
permits it, or CAP_SYS_PTRACE. Sources: proc(5), security/yama/yama_lsm.c, capabilities(7).
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from perfwatch_probes.probe import Unavailable

_CAP_SYS_PTRACE = 19
_MARKS_OF_A_CONTAINER = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")


@dataclass(frozen=True)
class Access:
    """What decides about access to one process. ``target_uid`` and ``yama_scope`` are None when they cannot be read."""

    our_uid: int
    target_uid: int | None
    has_capability: bool
    yama_scope: int | None
    in_container: bool


def access(pid: int, proc: Path = Path("/proc"), root: Path = Path("/")) -> Access:
    """Read the facts; never raises."""
    target_uid = _field(proc / str(pid) / "status", "Uid:")
    capabilities = _field(proc / "self/status", "CapEff:", base=16) or 0
    return Access(
        our_uid=os.geteuid(),
        target_uid=target_uid,
        has_capability=bool(capabilities >> _CAP_SYS_PTRACE & 1),
        yama_scope=_integer(proc / "sys/kernel/yama/ptrace_scope"),
        in_container=any((root / mark).exists() for mark in _MARKS_OF_A_CONTAINER),
    )


def explain(pid: int, facts: Access) -> Unavailable:
    """The refusal in words, with its fix. Pure."""
    reason = f"reading the memory of pid {pid} is denied"
    grant = as_root = f"sudo perfwatch attach {pid}"
    if facts.in_container:
        grant = (
            "give the container the capability: docker run --cap-add SYS_PTRACE ..., or in Kubernetes "
            "securityContext.capabilities.add: [SYS_PTRACE]"
        )
    if facts.yama_scope == 3:
        return Unavailable(
            f"{reason}: kernel.yama.ptrace_scope is 3, which forbids it to all users until the next boot",
            "set kernel.yama.ptrace_scope to 0 in /etc/sysctl.d and reboot",
        )
    if facts.has_capability:
        return Unavailable(
            f"{reason} although we have CAP_SYS_PTRACE: another user namespace or a security module", grant
        )
    if facts.target_uid is not None and facts.target_uid != facts.our_uid:
        if facts.our_uid:  # root has the capability, if the container has it
            grant = (
                as_root
                if facts.target_uid == 0
                else f"{as_root}, or as that user: sudo -u {_user(facts.target_uid)} ..."
            )
        return Unavailable(
            f"{reason}: it belongs to uid {facts.target_uid}, we are uid {facts.our_uid} without CAP_SYS_PTRACE", grant
        )
    if facts.yama_scope == 2:
        return Unavailable(f"{reason}: kernel.yama.ptrace_scope is 2, which asks for CAP_SYS_PTRACE", grant)
    if facts.yama_scope == 1:
        return Unavailable(
            f"{reason}: kernel.yama.ptrace_scope is 1 and pid {pid} was not started by perfwatch run",
            f"start it with perfwatch run, or: {grant}, or: sudo sysctl kernel.yama.ptrace_scope=0",
        )
    return Unavailable(f"{reason}: it is not dumpable, or it has capabilities that we lack", grant)


def _user(uid: int) -> str:
    """A user as sudo takes it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"'#{uid}'"


def _field(path: Path, name: str, base: int = 10) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next((int(line.split()[1], base) for line in lines if line.startswith(name)), None)
    except (OSError, ValueError, IndexError):
        return None


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
