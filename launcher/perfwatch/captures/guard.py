"""What is checked before a window is opened: it must not harm the job, and not another profiler either."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perfwatch.captures.capture import COUNTERS, CUPTI, Capture, Request, Scene, Subject
from perfwatch.errors import CaptureRefused
from perfwatch.processes.place import start_ticks
from perfwatch.triage.job import rank_ranges
from perfwatch_probes.cgroup import CgroupProbe
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable

# A trace is held in the job's own memory until it is written: Kineto's buffers for a card are 128 MB, those for the CPU as
# large again in the busiest window seen.
MEMORY_BYTES = 256 * 2**20  # of each rank that is traced
INJECTED = b"CUDA_INJECTION64_PATH="
INJECTION_LIBRARY = b"ToolsInjection"  # of nsys and ncu
DCGM_NAMES, DCGM_PROFILING = ("nv-hostengine", "dcgm-exporter"), b"libdcgmmoduleprofiling"
LONGEST_MAPS_BYTES = 16 * 2**20


def preflight(capture: Capture, request: Request, scene: Scene, folder: Path) -> None:
    """Look before the leap. Raises CaptureRefused, with what to do instead.

    Args:
        capture: what is to be done.
        request: how.
        scene: to whom.
        folder: where its files will go; it exists.
    """
    refuse_absent_ranks(request, scene)
    tracing = bool(capture.USES & {CUPTI, COUNTERS})
    if tracing and scene.cause == "checkpointing":
        raise CaptureRefused(
            "the job is writing a checkpoint: a window would slow that down and record no training",
            f"perfwatch capture {capture.NAME}, once it is written",
        )
    if COUNTERS in capture.USES and (other_pid := dcgm_profiles(scene.proc)) is not None:
        raise CaptureRefused(
            f"DCGM (pid {other_pid}) reads the cards' profiling counters, and only one tool can",
            "dcgmi profile --pause, then this, then dcgmi profile --resume",
        )
    _disk(capture, request, scene, folder)
    if tracing:
        _memory(scene.wanted(request), scene.proc)
        for subject in scene.wanted(request):
            other = injected(subject.pid, scene.proc)
            if other and capture.NAME not in scene.armed:
                raise CaptureRefused(
                    f"pid {subject.pid} runs under another profiler ({other}), and only one can trace a process",
                    "use that one, or start the job without it",
                )


def refuse_absent_ranks(request: Request, scene: Scene) -> None:
    """Raise CaptureRefused where no rank is known, or a rank that is named is not there."""
    if not scene.subjects:
        raise CaptureRefused("no rank of the job is known yet", "try again once it trains: perfwatch ps")
    there = {one.rank for one in scene.subjects if one.rank is not None}
    absent = [rank for rank in request.ranks if rank not in there]
    if absent:
        known = f"its ranks here are {rank_ranges(there)}" if there else "its ranks have no numbers"
        raise CaptureRefused(
            f"the job has no rank {rank_ranges(absent)} on this machine; {known}", "leave --rank out for all"
        )


def _disk(capture: Capture, request: Request, scene: Scene, folder: Path) -> None:
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    needed = 2 * capture.estimated_bytes(request, scene) + request.most_bytes
    if free < needed:
        raise CaptureRefused(
            f"{folder} has {_mib(free)} free, and this window may need {_mib(needed)} while it is written",
            "ask for a shorter window or fewer ranks, or name another disk: perfwatch run --session DIR",
        )


def _memory(subjects: tuple[Subject, ...], proc: Path) -> None:
    """In the machine, and in the control group of the first rank."""
    needed = MEMORY_BYTES * len(subjects)
    rooms = [("the machine", _available_bytes(proc))]
    try:
        for group in CgroupProbe(Filesystem(proc=proc)).look(subjects[0].pid):
            if group.memory_limit_bytes is not None and group.memory_bytes is not None:
                rooms.append(("the job's control group", group.memory_limit_bytes - group.memory_bytes))
    except Unavailable:
        pass  # no control groups here
    for where, room in rooms:
        if room is not None and room < needed:
            raise CaptureRefused(
                f"{where} has {_mib(room)} of memory left, and tracing {len(subjects)} ranks may take {_mib(needed)}",
                "ask for one rank: --rank 0",
            )


def _available_bytes(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def injected(pid: int, proc: Path = Path("/proc")) -> str:
    """What else is injected into a process to trace it; empty when nothing is, or when it cannot be seen."""
    try:
        for entry in (proc / str(pid) / "environ").read_bytes().split(b"\0"):
            if entry.startswith(INJECTED) and len(entry) > len(INJECTED):
                return os.path.basename(entry[len(INJECTED) :].decode(errors="replace"))
        with (proc / str(pid) / "maps").open("rb") as maps:
            if INJECTION_LIBRARY in maps.read(LONGEST_MAPS_BYTES):
                return "nsys or ncu"
    except OSError:
        pass
    return ""


def dcgm_profiles(proc: Path = Path("/proc")) -> int | None:
    """The pid of a DCGM that has begun to collect profiling metrics; None also where we may not look into it.

    It loads its modules when they are first used (DCGM user guide, modularity), in its engine or in an exporter that embeds it.
    """
    for entry in proc.iterdir():
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text().strip() in DCGM_NAMES:
                with (entry / "maps").open("rb") as maps:
                    if DCGM_PROFILING in maps.read(LONGEST_MAPS_BYTES):
                        return int(entry.name)
        except OSError:
            continue
    return None


@contextmanager
def held(capture: Capture, subjects: tuple[Subject, ...], home: Path) -> Iterator[None]:
    """Keep other captures of perfwatch away from what this one uses, from whichever process they are asked.

    Args:
        capture: what it ``USES`` is locked for each process.
        subjects: the processes.
        home: a private folder in memory that all our processes share.

    Raises CaptureRefused when another capture holds one of them.
    """
    with ExitStack() as locks:
        for resource in sorted(capture.USES):
            for subject in subjects:
                path = home / f"capture-{resource}-{subject.pid}"
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                locks.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise CaptureRefused(
                        f"another capture of pid {subject.pid} is running, and only one profiler can trace a process",
                        "wait for it: it ends within a minute or two",
                    ) from None
                locks.callback(path.unlink, missing_ok=True)
        yield


def alive(subjects: tuple[Subject, ...], proc: Path = Path("/proc")) -> tuple[Subject, ...]:
    """Those that are still the processes that were meant."""
    return tuple(one for one in subjects if start_ticks(one.pid, proc) == one.start_ticks)


def _mib(count: int) -> str:
    return f"{max(0, count) / 2**20:,.0f} MiB"
