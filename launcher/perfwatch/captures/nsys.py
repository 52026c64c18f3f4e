"""Nsight Systems: a window of its timeline on the live job, as often as asked.

A job that ``run --arm nsys`` started belongs to a session of nsys (``perfwatch.captures.nsight.nsys_session``): a window is
``nsys start``, a wait, ``nsys stop``. A job that was only attached to cannot be traced so any more; what nsys can do there
is to sample the machine: the counters of every GPU and the CPUs' call stacks, of whatever runs.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfwatch.captures.capture import CUPTI, Collected, File, Request, Scene, Subject, Window
from perfwatch.captures.nsight.finding import Tool, armed_tool, find, options
from perfwatch.captures.nsight.importer import advice_for_raw
from perfwatch.captures.nsight.nsys_report import exported
from perfwatch.captures.nsight.permission import check_counters, refused
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable, TraceUnreadable
from perfwatch.processes.programs import run_program
from perfwatch.text import duration
from perfwatch.traces.nsys_trace import read
from perfwatch.traces.torch_summary import summary
from perfwatch_probes.external import Finished

NAME = "nsys"
SUMMARY = "a timeline of Nsight Systems: CUDA calls, kernels, copies, NVTX ranges"
DISTURBS = (
    "armed and idle nothing measurable; steps in a window are slower by a half on a launch-bound job, and for the seconds that "
    "nsys takes to stop and import; should nsys die, programs that the job starts later cannot use CUDA"
)
USES = frozenset({CUPTI})
TRIGGERED_BY = "timeline"
OVER_NCCL = "over-nccl"
OPTIONS: Mapping[str, str] = {
    OVER_NCCL: "also where ranks talk over NCCL: of ten windows there one ended a rank with signal 11"
}

DEFAULT_SECONDS = 2.0
NCCL_WATCHDOG = "pt_nccl_watchdg"  # the thread's name (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, since 2.4)
START_SECONDS = 30.0
STOP_SECONDS = 90.0  # 4 s with the import of a 2 s window on an H200; 98 s is what osrt made of it
_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_VIEWER = "nsys-ui"
_OWN_SESSION = "perfwatch-machine"
_PRIVATE = (
    "nsys writes the environment of every process that it may read into its report: look for keys before you pass it on"
)
_NO_STEPS = "0 optimizer steps"  # nsys sees none, and that is no finding


def belongs_to_the_user(scene: Scene) -> bool:
    """An armed session does; the machine as a whole does not."""
    return NAME in scene.armed


def available(request: Request, scene: Scene) -> None:
    """An armed session, or a machine that may be sampled as a whole."""
    if NAME in scene.armed:
        if OVER_NCCL not in request.options and talks_over_nccl(scene):
            # One of ten, with the nsys 2025.3.1 of an Nsight Compute install on two H200; over gloo four windows harmed no rank.
            raise CaptureRefused(
                "the ranks talk over NCCL, and of ten windows that nsys opened on such jobs one ended a rank with signal 11",
                "perfwatch capture torch  # the same kernels, of every rank; or take the risk: --over-nccl",
            )
        return
    check_counters(scene.proc)
    find("nsys", scene.environment, run_program)


def talks_over_nccl(scene: Scene) -> bool:
    """True if there are several ranks, and torch's watchdog of an NCCL group runs in one of them."""
    if len(scene.subjects) < 2:
        return False
    names = (comm for one in scene.subjects for comm in (scene.proc / str(one.pid) / "task").glob("*/comm"))
    for name in names:
        with contextlib.suppress(OSError):
            if name.read_text().startswith(NCCL_WATCHDOG):
                return True
    return False


def estimated_bytes(request: Request, scene: Scene) -> int:
    """1.6 MB a second of a launch-bound training on an H200, imported; several times that while it is raw."""
    return min(request.most_bytes, round(16 * 2**20 * max(1.0, _seconds(request))))


def command(request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
    """``start`` and ``stop`` of the armed session; one ``profile`` of the machine without one."""
    if NAME in scene.armed:
        tool, session = Tool("nsys", "nsys", ()), _session(scene)
        return start_command(tool, session, folder), stop_command(tool, session)
    return (machine_command(Tool("nsys", "nsys", ()), frozenset(), _seconds(request), folder, _OWN_SESSION),)


def collect(request: Request, scene: Scene, window: Window) -> Collected:
    """Open the window, close it, import, read; a raw file that cannot be imported is kept and explained."""
    if NAME not in scene.armed:
        return _of_the_machine(request, scene, window)
    session = _session(scene)
    tool = armed_tool(NAME, scene.armed[NAME], scene.environment, window.run)
    environment = {**scene.environment, "TMPDIR": scene.armed[NAME].get("tmpdir", "/tmp")}
    started = window.run(start_command(tool, session, window.folder), START_SECONDS, environment)
    if started.returncode != 0:
        raise _failed(
            "nsys start", started, "the session may be gone with its agent: perfwatch run --arm nsys -- COMMAND"
        )
    opened = window.clock()
    window.opened()
    try:
        window.wait(_seconds(request))
    finally:  # a window that stays open would go on writing
        window.closed()
        seconds = window.clock() - opened
        window.tell("nsys stops and imports")
        stopped = window.run(stop_command(tool, session), STOP_SECONDS, environment)
        if stopped.returncode != 0:
            window.run((tool.path, "cancel", f"--session={session}"), START_SECONDS, environment)
    if stopped.returncode != 0 and not _brought(window.folder):
        raise _failed("nsys stop", stopped, "the collection was cancelled; a shorter window needs less: --seconds 1")
    return _collected(request, scene.wanted(request), tool, window, seconds, stopped)


def start_command(tool: Tool, session: str, folder: Path) -> tuple[str, ...]:
    """Begin to record: no CPU sampling, no context switches, which cost the job dear; pure."""
    return (
        tool.path, "start", f"--session={session}", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true",
        f"--output={folder / 'window'}",
    )  # fmt: skip


def stop_command(tool: Tool, session: str) -> tuple[str, ...]:
    """End the recording and import it; pure."""
    return (tool.path, "stop", f"--session={session}")


def machine_command(
    tool: Tool, listed: frozenset[str], seconds: float, folder: Path, session: str, sample: bool = True
) -> tuple[str, ...]:
    """Sample the machine as a whole for so long: no program is started, none is traced; pure.

    ``listed``: the options of this version; the one for GPU metrics has changed its name. ``session``: with a name it can be
    shut down; its agent is a process that nsys lets loose, and would stay and sample if only nsys were killed (tried).
    """
    metrics = "--gpu-metrics-device=all" if "--gpu-metrics-device" in listed else "--gpu-metrics-devices=all"
    return (
        tool.path, "profile", f"--session-new={session}", f"--duration={max(1, round(seconds))}", "--trace=none", metrics,
        f"--sample={'system-wide' if sample else 'none'}", "--cpuctxsw=none", "--force-overwrite=true",
        f"--output={folder / 'machine'}",
    )  # fmt: skip


def _of_the_machine(request: Request, scene: Scene, window: Window) -> Collected:
    tool = find("nsys", scene.environment, window.run)
    listed = options(tool, window.run, "profile")
    if not {"--gpu-metrics-devices", "--gpu-metrics-device"} & listed:
        raise CaptureUnavailable(
            f"nsys {tool.version_text} ({tool.path}) is too old to sample GPUs", "a newer one: PERFWATCH_NSYS=PATH"
        )
    sample = _may_sample(scene.proc)
    seconds = _seconds(request)
    session = f"{_OWN_SESSION}-{os.getpid()}"
    profile = machine_command(tool, listed, seconds, window.folder, session, sample)
    window.opened()
    ended = False
    try:
        finished = window.run(profile, seconds + STOP_SECONDS, scene.environment)
        ended = finished.returncode == 0
    finally:
        window.closed()
        if not ended:
            window.run((tool.path, "shutdown", f"--session={session}"), START_SECONDS, scene.environment)
    if denied := refused(finished.errors + finished.output.decode(errors="replace")):
        raise denied
    if finished.returncode != 0 and not _brought(window.folder):
        raise _failed("nsys profile", finished, "try it: nsys profile --gpu-metrics-devices=all --duration=2")
    notes = [
        "system-wide: GPU counters" + (" and CPU samples" if sample else "") + " of everything on this machine; "
        "kernels and CUDA calls of the job need perfwatch run --arm nsys"
    ]
    notes.append(_PRIVATE)
    if not sample:
        notes.append(
            "no CPU samples: kernel.perf_event_paranoid forbids them (sudo sysctl kernel.perf_event_paranoid=0)"
        )
    return Collected(_files(window.folder, (), request), float(max(1, round(seconds))), tuple(notes))


def _collected(
    request: Request, subjects: tuple[Subject, ...], tool: Tool, window: Window, seconds: float, stopped: Finished
) -> Collected:
    notes = [_PRIVATE]
    if request.steps is not None and request.seconds is None:
        notes.append(f"nsys has no window of steps: it recorded for {duration(seconds)}")
    if request.ranks:
        notes.append("nsys records every process of the session: all ranks are in the file")
    files = _files(window.folder, subjects, request)
    report = window.folder / "window.nsys-rep"
    if not report.exists():
        notes.append(advice_for_raw(tool, stopped.errors + stopped.output.decode(errors="replace"), window.run))
        return Collected(files, seconds, tuple(notes))
    window.tell("reading the timeline")
    try:
        with exported(report, tool, window.run) as database:
            traces = read(database, {one.pid: one.rank for one in subjects})
    except (TraceUnreadable, CaptureUnavailable) as error:
        notes.append(f"the report is there, but could not be read: {error.message}")
        return Collected(files, seconds, tuple(notes))
    if not traces:
        notes.append("no process ran anything on a GPU in the window")
    return Collected(
        files,
        seconds,
        tuple(notes),
        summary="\n".join(line for line in summary(traces) if not line.startswith(_NO_STEPS)),
        report={"ranks": [msgspec.to_builtins(trace) for trace in traces]},
        readings=tuple(msgspec.to_builtins(trace) for trace in traces),
    )


def _files(folder: Path, subjects: tuple[Subject, ...], request: Request) -> tuple[File, ...]:
    """What is to be kept; the raw recording goes when the imported one is there. Raises CaptureFailed past the cap."""
    kept = _brought(folder)
    reports = [path for path in kept if path.suffix == ".nsys-rep"]
    for path in folder.iterdir():
        if path not in (reports or kept):
            path.unlink(missing_ok=True)
    only = subjects[0] if len(subjects) == 1 else None
    for path in reports or kept:
        path.chmod(0o600)
    files = [
        File(
            path=str(path),
            size_bytes=path.stat().st_size,
            pid=only.pid if only else None,
            rank=only.rank if only else None,
            opens_with=_VIEWER,
        )
        for path in reports or kept
    ]
    if not files:
        raise CaptureFailed("nsys left no report", "is the disk full? df -h .; PERFWATCH_DIR names another place")
    if sum(file.size_bytes for file in files) > request.most_bytes:
        for file in files:
            Path(file.path).unlink(missing_ok=True)
        raise CaptureFailed(
            f"the report is larger than {request.most_bytes // 2**20} MB and was not kept",
            "a shorter window: --seconds 1",
        )
    return tuple(files)


def _brought(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".nsys-rep", ".qdstrm", ".qdrep"))


def _session(scene: Scene) -> str:
    """The name of the job's session of nsys, which becomes a word of a command."""
    name = scene.armed[NAME].get("session", "")
    if not _SESSION_NAME.fullmatch(name):
        raise CaptureUnavailable("the job's session of nsys has no usable name", "perfwatch run --arm nsys -- COMMAND")
    return name


def _seconds(request: Request) -> float:
    return request.seconds or DEFAULT_SECONDS


def _may_sample(proc: Path) -> bool:
    try:
        return int((proc / "sys/kernel/perf_event_paranoid").read_text()) <= 0 or _is_root(proc)
    except (OSError, ValueError):
        return False


def _is_root(proc: Path) -> bool:
    lines = (proc / "self/status").read_text().splitlines()
    return any(line.split()[:2] == ["Uid:", "0"] for line in lines)


def _failed(what: str, finished: Finished, advice: str) -> CaptureFailed:
    said = (finished.errors.strip() or finished.output.decode(errors="replace").strip()).splitlines()
    how = "did not end in time" if finished.returncode is None else f"ended with {finished.returncode}"
    return CaptureFailed(f"{what} {how}" + (f": {said[-1][:300]}" if said else ""), advice)
