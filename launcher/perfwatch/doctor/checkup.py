"""The checks of ``perfwatch doctor``: what can be observed on this machine, what cannot, and the exact fix for each denial.

Each check tries the real thing once (it opens the file, queries the socket, starts py-spy) instead of inferring from versions. No check
touches a path of the job outside /proc.
"""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfwatch.errors import SessionUnwritable, UsageError
from perfwatch.options import PREFIX
from perfwatch.recording.session import choose_directory, filesystem_of
from perfwatch_probes.cgroup import MOUNT_ADVICE
from perfwatch_probes.deadline import Caller
from perfwatch_probes.external import run_together
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.kernel_log import KernelLogProbe
from perfwatch_probes.mounts import in_sight
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.ptrace_access import Access, access
from perfwatch_probes.sock_diag import ask_tcp
from perfwatch_probes.stacks import MISSING_ADVICE, find_py_spy

SCHEMA = "perfwatch.doctor/2"
PY_SPY_MINIMUM = (0, 4)  # --nonblocking with the thread ids that we need
DEADLINE_SECONDS = 2.0


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that perfwatch would like to see; ``limited`` and ``missing`` say what the two mean."""

    name: str
    status: str  # ok, limited, missing
    finding: str
    fix: str = ""  # the exact command; empty when nothing has to be done


Check = Callable[[], Ability]


def ok(name: str, finding: str) -> Ability:
    """Something that works, or that this machine does not have to have."""
    return Ability(name=name, status="ok", finding=finding)


def limited(name: str, finding: str, fix: str = "") -> Ability:
    """Something that is seen in part or not at all, without which verdicts are less certain; ``fix`` changes that."""
    return Ability(name=name, status="limited", finding=finding, fix=fix)


def missing(name: str, finding: str, fix: str = "") -> Ability:
    """Something without which most hangs cannot be explained here, and what changes that."""
    return Ability(name=name, status="missing", finding=finding, fix=fix)


@dataclass(frozen=True)
class Summary:
    """How many findings are of each status."""

    ok: int
    limited: int
    missing: int

    @classmethod
    def of(cls, abilities: Iterable[Ability]) -> "Summary":
        """Count."""
        counts = Counter(one.status for one in abilities)
        return cls(counts["ok"], counts["limited"], counts["missing"])

    def __str__(self) -> str:
        """``all 12 checks passed``, ``10 of 12 checks passed; 1 limited, 1 missing``."""
        total = self.ok + self.limited + self.missing
        if self.ok == total:
            return f"all {total} checks passed"
        rest = [
            f"{count} {status}" for status, count in (("limited", self.limited), ("missing", self.missing)) if count
        ]
        return f"{self.ok} of {total} checks passed; {', '.join(rest)}"

    def exit_code(self, strict: bool) -> int:
        """0 where nothing is missing, and if ``strict`` nothing is limited either; otherwise 1."""
        return int(bool(self.missing or (strict and self.limited)))


def examine_machine(filesystem: Filesystem, child: Caller, environ: Mapping[str, str]) -> list[Ability]:
    """What this machine and this user allow, whatever the job."""
    facts = access(os.getpid(), filesystem.proc)
    return list(
        _each(
            (
                ("stacks", lambda: py_spy()),
                ("ptrace", lambda: ptrace(facts)),
                ("other users' processes", lambda: hidden_processes(filesystem)),
                ("when a thread last ran", lambda: last_ran(filesystem)),
                ("sockets", lambda: sockets()),
                ("cgroup", lambda: cgroup(filesystem)),
                ("pressure", lambda: pressure(filesystem)),
                ("kernel_log", lambda: kernel_log()),
                ("native profile", lambda: native_profile(filesystem)),
                ("session", lambda: session_place(environ, child)),
                ("configuration", lambda: configuration(environ)),
            )
        )
    )


def py_spy(command: str | None = None) -> Ability:
    """Check that py-spy is there, starts, and is new enough."""
    command = command or find_py_spy()
    if command is None:
        return missing("stacks", "py-spy is not installed", MISSING_ADVICE)
    (ended,) = run_together([[command, "--version"]], DEADLINE_SECONDS)
    version = re.search(r"(\d+)\.(\d+)[.\d]*", ended.output.decode(errors="replace"))
    if ended.returncode is None:
        return missing("stacks", f"{command} gave no answer within {DEADLINE_SECONDS:g} s", MISSING_ADVICE)
    if ended.returncode != 0 or version is None:
        return missing("stacks", f"{command} does not run: {ended.errors[:100]}", MISSING_ADVICE)
    if (int(version[1]), int(version[2])) < PY_SPY_MINIMUM:
        return missing("stacks", f"py-spy {version[0]} is too old", MISSING_ADVICE)
    return ok("stacks", f"py-spy {version[0]}, never pauses the job")


def ptrace(facts: Access) -> Ability:
    """Whose memory the kernel lets us read."""
    where = "in a container" if facts.in_container else "on the host"
    scope = "no Yama" if facts.yama_scope is None else f"kernel.yama.ptrace_scope {facts.yama_scope}"
    finding = f"{where}, {scope}, {'with' if facts.has_capability else 'without'} CAP_SYS_PTRACE"
    if facts.yama_scope == 3:
        return missing(
            "ptrace",
            finding,
            "set kernel.yama.ptrace_scope to 0 in /etc/sysctl.d and reboot",
        )
    if facts.has_capability:
        return ok("ptrace", f"{finding}: every process")
    grant = "docker run --cap-add SYS_PTRACE ..." if facts.in_container else "sudo perfwatch attach PID"
    if facts.yama_scope == 2:
        return missing("ptrace", finding, grant)
    if facts.yama_scope == 1:
        return limited(
            "ptrace",
            f"{finding}: only jobs started by perfwatch run",
            f"for attach: {grant}, or: sudo sysctl kernel.yama.ptrace_scope=0",
        )
    return ok("ptrace", f"{finding}: our own processes")


def hidden_processes(filesystem: Filesystem) -> Ability:
    """Check if /proc is mounted with hidepid."""
    name = "other users' processes"
    mounts = filesystem.read_text(filesystem.proc / "self/mounts")
    hidden = re.search(r"^\S+ /proc proc \S*hidepid=(\w+)", mounts, re.M)
    if hidden and hidden[1] not in ("0", "off"):
        return limited(
            name,
            f"/proc is mounted with hidepid={hidden[1]}",
            "run as the job's user, or: sudo mount -o remount,hidepid=0 /proc",
        )
    return ok(name, "/proc shows every process of this PID namespace")


def last_ran(filesystem: Filesystem) -> Ability:
    """Check that the scheduler's memory (CONFIG_SCHED_DEBUG) is there."""
    name = "when a thread last ran"
    text = filesystem.read_text(filesystem.proc / "self/sched")
    if "se.exec_start" not in text:
        return limited(
            name,
            "/proc/PID/sched has no se.exec_start",
            "attach early, or use perfwatch run: silence is then measured from the moment of the attach",
        )
    return ok(name, "the kernel remembers: a run stuck for minutes is judged at once")


def sockets() -> Ability:
    """Check that the kernel answers socket diagnostics."""
    try:
        ask_tcp(2)
    except OSError as error:
        return limited(
            "sockets",
            f"sock_diag: {error.strerror}; peers are named, silence is not timed",
            "sudo modprobe tcp_diag inet_diag",
        )
    return ok("sockets", "sock_diag says when each connection last received")


def cgroup(filesystem: Filesystem) -> Ability:
    """Which cgroup versions are mounted."""
    mounts = in_sight(filesystem.read_text(filesystem.proc / "self/mountinfo"))
    kinds = [kind for kind in ("cgroup2", "cgroup") if any(f" - {kind} " in line for line in mounts)]
    if not kinds:
        return limited(
            "cgroup",
            "no cgroup file system is in sight: CPU throttling and OOM kills stay unseen",
            MOUNT_ADVICE,
        )
    versions = " and ".join({"cgroup2": "version 2", "cgroup": "version 1"}[kind] for kind in kinds)
    return ok("cgroup", f"{versions} mounted")


def pressure(filesystem: Filesystem) -> Ability:
    """Check that pressure stall information is on."""
    try:
        filesystem.read_text(filesystem.proc / "pressure/cpu")
    except Unavailable as unavailable:
        return limited(
            "pressure",
            unavailable.reason,
            "boot with psi=1 on the kernel command line (Linux 4.20)",
        )
    return ok("pressure", "PSI for CPU, memory and io")


def kernel_log() -> Ability:
    """Check that /dev/kmsg can be read."""
    KernelLogProbe().look()
    return ok("kernel_log", "OOM kills, hung tasks and Xid errors are seen")


def native_profile(filesystem: Filesystem, which: Callable[[str], str | None] = shutil.which) -> Ability:
    """Check that perf is there and allowed."""
    if which("perf") is None:
        return limited(
            "native profile",
            "perf is not installed: running C code is not named",
            "apt install linux-perf, or: dnf install perf",
        )
    paranoid = int(filesystem.read_text(filesystem.proc / "sys/kernel/perf_event_paranoid"))
    if paranoid > 2 and os.geteuid() != 0:
        return limited(
            "native profile",
            f"kernel.perf_event_paranoid is {paranoid}",
            "sudo sysctl kernel.perf_event_paranoid=2",
        )
    return ok("native profile", "perf names the native function that a thread runs")


def session_place(environ: Mapping[str, str], child: Caller) -> Ability:
    """Where a session would go; the folder is made and removed again."""
    try:
        folder = choose_directory(None, environ, child, created=time.time(), pid=os.getpid())
    except SessionUnwritable as error:
        return missing("session", error.message, error.advice)
    point, kind = filesystem_of(os.path.realpath(folder), Path("/proc/self/mounts").read_text())
    space = shutil.disk_usage(folder).free
    folder.rmdir()
    return ok("session", f"{folder.parent} on {kind} ({point}), {space / 2**30:.1f} GiB free")


def configuration(environ: Mapping[str, str]) -> Ability:
    """Which configuration files are read, and which variables set options."""
    from perfwatch.settings import SETTABLE, VARIABLE, candidates, read

    looked, found = [], []
    for path, required in candidates(environ):
        looked.append(str(path))
        try:
            file = read(path, required)
        except UsageError as why:
            return missing("configuration", why.message, why.advice)
        if file is not None:
            names = (f"{table}.{name}" if table else name for table, values in file.tables.items() for name in values)
            found.append(f"{path} sets {', '.join(names) or 'nothing'}")
    set_here = sorted(name for name in environ if name.startswith(PREFIX))
    found += [f"the environment has {', '.join(set_here)}"] if set_here else []
    options = f"options of {', '.join(SETTABLE)} can be set in {' and '.join(looked)}, or ${VARIABLE}"
    return ok("configuration", "; ".join(found) or f"none; {options}")


def _each(checks: Iterable[tuple[str, Check]]) -> Iterator[Ability]:
    """One failing check is a finding, not the end of the others."""
    for name, check in checks:
        try:
            yield check()
        except Unavailable as unavailable:
            yield limited(name, unavailable.reason, unavailable.advice)
        except (OSError, ValueError) as error:
            yield limited(name, f"could not be checked: {error}")
