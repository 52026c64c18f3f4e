"""The second half of ``perfwatch doctor PID``: what of the design's table is armed, possible or denied for this very job."""

import os
from collections.abc import Iterator

from perfwatch.checkup import ARMED, DENIED, POSSIBLE, Ability
from perfwatch.errors import NoSuchTarget
from perfwatch.probes.deadline import Caller
from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.process import ended, identify
from perfwatch.probes.ptrace_access import access, explain
from perfwatch.probes.readings import Process
from perfwatch.redaction import redact

DEADLINE_SECONDS = 1.0
NAMESPACES = ("pid", "mnt", "net", "user", "cgroup")
AGENT_VARIABLE = b"PERFWATCH_AGENT_DIR="
# Offers of torch itself that a later capture can use, if the job's environment made them.
ARMED_BY = {
    "flight recorder": (b"TORCH_NCCL_DEBUG_INFO_PIPE_FILE=", "start it with TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_"),
    "torch.profiler": (b"KINETO_USE_DAEMON=", "start it with KINETO_USE_DAEMON=1"),
}


def examine_job(filesystem: Filesystem, pid: int, child: Caller) -> list[Ability]:
    """What can be seen of one process.

    Raises:
        NoSuchTarget: there is no such process, or it is a zombie.
    """
    try:
        process = identify(filesystem, pid, child, redact)
        gone = ended(filesystem, process)
    except Unavailable as unavailable:
        raise NoSuchTarget(f"no process {pid}: {unavailable.reason}", "perfwatch ps lists the training jobs") from None
    if gone is not None:
        raise NoSuchTarget(
            f"process {pid} ({process.name}) is a zombie: it has ended", f"perfwatch doctor {process.parent_pid}"
        )
    return [
        _program(process),
        _memory(filesystem, process, child),
        *_armed(filesystem, pid, child),
        _namespaces(filesystem, pid),
        _state(filesystem, pid),
    ]


def _program(process: Process) -> Ability:
    rank = "" if process.rank is None else f", rank {process.rank} of {process.world_size or '?'}"
    what = f"{process.executable or process.name}, uid {process.uid}{rank}"
    if not process.python:
        return Ability(
            name="python", status=DENIED, finding=f"{what}: not Python", fix="perfwatch ps lists the training jobs"
        )
    torch = {True: "torch loaded", False: "torch not loaded", None: "its memory map may not be read"}[
        process.torch_loaded
    ]
    return Ability(name="python", status=POSSIBLE, finding=f"{what}, {torch}")


def _memory(filesystem: Filesystem, process: Process, child: Caller) -> Ability:
    """Opening /proc/PID/mem asks the kernel exactly what py-spy will ask; nothing is read and nothing is stopped."""
    try:
        child.call(open_memory, str(filesystem.proc / str(process.pid) / "mem"), deadline_seconds=DEADLINE_SECONDS)
    except Unavailable as unavailable:
        return Ability(name="stacks and waits", status=DENIED, finding=unavailable.reason, fix=unavailable.advice)
    except OSError:
        refusal = explain(process.pid, access(process.pid, filesystem.proc))
        return Ability(name="stacks and waits", status=DENIED, finding=refusal.reason, fix=refusal.advice)
    return Ability(name="stacks and waits", status=POSSIBLE, finding="its memory may be read")


def open_memory(path: str) -> None:
    """Runs in the killable child. Raises OSError where ptrace access is denied."""
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _armed(filesystem: Filesystem, pid: int, child: Caller) -> Iterator[Ability]:
    try:
        environ = child.call(
            filesystem.read_bytes, f"{filesystem.proc}/{pid}/environ", deadline_seconds=DEADLINE_SECONDS
        )
    except Unavailable as unavailable:
        yield Ability(name="steps", status=DENIED, finding=unavailable.reason, fix=unavailable.advice)
        return
    variables = environ.split(b"\0")
    if any(variable.startswith(AGENT_VARIABLE) for variable in variables):
        yield Ability(name="steps", status=ARMED, finding="started by perfwatch run: steps are counted")
    else:
        yield Ability(
            name="steps", status=DENIED, finding="not started by perfwatch run: steps are not counted",
            fix="next time: perfwatch run -- COMMAND",
        )  # fmt: skip
    for name, (variable, fix) in ARMED_BY.items():
        if any(one.startswith(variable) for one in variables):
            yield Ability(name=name, status=ARMED, finding=f"{variable.decode().rstrip('=')} is set in the job")
        else:
            yield Ability(
                name=name, status=DENIED, finding=f"{variable.decode().rstrip('=')} is not set in the job", fix=fix
            )


def _namespaces(filesystem: Filesystem, pid: int) -> Ability:
    try:
        other = [
            kind for kind in NAMESPACES
            if filesystem.readlink(f"{filesystem.proc}/{pid}/ns/{kind}") != filesystem.readlink(f"{filesystem.proc}/self/ns/{kind}")
        ]  # fmt: skip
    except Unavailable as unavailable:
        return Ability(name="namespaces", status=DENIED, finding=unavailable.reason, fix=unavailable.advice)
    if not other:
        return Ability(name="namespaces", status=POSSIBLE, finding="the same as ours")
    return Ability(
        name="namespaces", status=POSSIBLE, finding=f"another container: its {', '.join(other)} differ from ours",
        fix=f"for its paths and peers as it sees them: sudo nsenter -t {pid} -a perfwatch attach ... (where it is installed)",
    )  # fmt: skip


def _state(filesystem: Filesystem, pid: int) -> Ability:
    status = dict(
        line.split(":", 1)
        for line in filesystem.read_text(f"{filesystem.proc}/{pid}/status").splitlines()
        if ":" in line
    )
    tracer = int(status.get("TracerPid", "0"))
    state = status.get("State", "unknown").strip()
    if tracer:
        return Ability(
            name="tracer", status=DENIED, finding=f"pid {tracer} traces it (state {state}): a debugger or a profiler",
            fix=f"see who: ps -o pid,user,args -p {tracer}",
        )  # fmt: skip
    return Ability(name="tracer", status=POSSIBLE, finding=f"nobody traces it; state {state}")
