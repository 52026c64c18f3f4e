"""The checks of one process, for ``perfwatch doctor PID``: what is ok, limited or missing."""

from collections.abc import Iterator

from perfwatch.doctor.checkup import Ability, limited, missing, ok
from perfwatch.doctor.gpu import GpuCheckup, examine_binding
from perfwatch.errors import NoSuchTarget
from perfwatch.jobs.permission import open_once
from perfwatch.recording.redaction import redact_command
from perfwatch_probes.bounds import ENVIRONMENT_BYTES
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.flight_recorder import NOT_ARMED
from perfwatch_probes.group_variables import AGENT_VARIABLE, PIPE_VARIABLE
from perfwatch_probes.nccl_address import addresses
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import ended, identify
from perfwatch_probes.ptrace_access import access, explain
from perfwatch_probes.readings import Process

DEADLINE_SECONDS = 1.0
NAMESPACES = ("pid", "mnt", "net", "user", "cgroup")
# Offers of torch itself that a later capture can use, if the job's environment made them.
ARMED_BY = {
    "flight_recorder": ((PIPE_VARIABLE, AGENT_VARIABLE), NOT_ARMED),
    "torch.profiler": (("KINETO_USE_DAEMON", "PERFWATCH_PROFILER"), "start it with perfwatch run"),
}


def examine_job(filesystem: Filesystem, pid: int, child: Caller, gpus: GpuCheckup | None = None) -> list[Ability]:
    """What can be seen of one process.

    Args:
        filesystem: where /proc is.
        pid: the process.
        child: where reads that may block are made.
        gpus: what was found out about the cards, after its ``examine``.

    Raises:
        NoSuchTarget: there is no such process, or it is a zombie.
    """
    try:
        process = identify(filesystem, pid, child, redact_command)
        gone = ended(filesystem, process)
    except Unavailable:
        raise NoSuchTarget(f"no process {pid}", "perfwatch ps lists the training jobs of this machine") from None
    if gone is not None:
        raise NoSuchTarget(
            f"process {pid} ({process.name}) is a zombie: it has ended", f"perfwatch doctor {process.parent_pid}"
        )
    return [
        _program(process),
        _memory(filesystem, process, child),
        *_armed(filesystem, pid, child),
        *_counted(filesystem, process, child),
        _namespaces(filesystem, pid),
        _state(filesystem, pid),
        *(examine_binding(filesystem, process, gpus.gpus, gpus.contexts) if gpus is not None else ()),
    ]


def _program(process: Process) -> Ability:
    rank = "" if process.rank is None else f", rank {process.rank} of {process.world_size or '?'}"
    what = f"{process.executable or process.name}, uid {process.uid}{rank}"
    if not process.python:
        return missing("python", f"{what}: not Python", "perfwatch ps lists the training jobs")
    torch = {True: "torch loaded", False: "torch not loaded", None: "its memory map may not be read"}[
        process.torch_loaded
    ]
    return ok("python", f"{what}, {torch}")


def _memory(filesystem: Filesystem, process: Process, child: Caller) -> Ability:
    """Opening /proc/PID/mem asks the kernel exactly what py-spy will ask; nothing is read and nothing is stopped."""
    try:
        child.call(open_once, str(filesystem.proc / str(process.pid) / "mem"), deadline_seconds=DEADLINE_SECONDS)
    except Unavailable as unavailable:
        return missing("stacks and waits", unavailable.reason, unavailable.advice)
    except OSError:
        refusal = explain(process.pid, access(process.pid, filesystem.proc))
        return missing("stacks and waits", refusal.reason, refusal.advice)
    return ok("stacks and waits", "its memory may be read")


def _armed(filesystem: Filesystem, pid: int, child: Caller) -> Iterator[Ability]:
    try:
        environ = child.call(
            filesystem.read_bytes,
            f"{filesystem.proc}/{pid}/environ",
            ENVIRONMENT_BYTES,
            deadline_seconds=DEADLINE_SECONDS,
        )
    except Unavailable as unavailable:
        yield limited("steps", unavailable.reason, unavailable.advice)
        return
    variables = environ.split(b"\0")
    names = {variable.partition(b"=")[0].decode(errors="replace") for variable in variables}
    if AGENT_VARIABLE in names:
        yield ok("steps", "started by perfwatch run: steps are counted")
    else:
        yield limited(
            "steps",
            "not started by perfwatch run: steps are not counted",
            "next time: perfwatch run -- COMMAND",
        )
    for name, (offers, fix) in ARMED_BY.items():
        found = next((offer for offer in offers if offer in names), None)
        if found is not None:
            yield ok(name, f"{found} is set in the job")
        else:
            yield limited(name, f"{offers[0]} is not set in the job", fix)


def _counted(filesystem: Filesystem, process: Process, child: Caller) -> Iterator[Ability]:
    """Check that the RAS service of the job's NCCL answers; nothing about a job of one rank."""
    if process.rank is None and process.world_size is None:
        return
    name = "nccl_ras"
    try:
        found = child.call(addresses, filesystem, (process.pid,), deadline_seconds=DEADLINE_SECONDS)
    except Absent as absent:
        yield limited(name, absent.reason, absent.advice or "NCCL 2.24 or newer has it; gloo has none")
    except Unavailable as unavailable:
        yield limited(name, unavailable.reason, unavailable.advice)
    else:
        (host, port), whole = found[0]
        shared = "" if whole else ", which another job shares: its answers are separated by their processes"
        yield ok(name, f"answers on {host}:{port}{shared}")


def _namespaces(filesystem: Filesystem, pid: int) -> Ability:
    try:
        links = [
            [filesystem.readlink(f"{filesystem.proc}/{who}/ns/{kind}") for kind in NAMESPACES] for who in ("self", pid)
        ]
    except Unavailable as unavailable:
        return limited("namespaces", unavailable.reason, unavailable.advice)
    other = [kind for kind, here, there in zip(NAMESPACES, *links, strict=True) if here != there]
    if not other:
        return ok("namespaces", "the same as ours")
    return limited(
        "namespaces",
        f"another container: its {', '.join(other)} differ from ours",
        f"to see its paths and peers as it does: sudo nsenter -t {pid} -a perfwatch attach ...",
    )


def _state(filesystem: Filesystem, pid: int) -> Ability:
    status = dict(
        line.split(":", 1)
        for line in filesystem.read_text(f"{filesystem.proc}/{pid}/status").splitlines()
        if ":" in line
    )
    tracer = int(status.get("TracerPid", "0"))
    state = status.get("State", "unknown").strip()
    if tracer:
        return limited(
            "tracer",
            f"pid {tracer} traces it (state {state}): a debugger or a profiler",
            f"see who: ps -o pid,user,args -p {tracer}",
        )
    return ok("tracer", f"it is not traced; state {state}")
