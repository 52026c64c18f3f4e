"""``capture memory``: a snapshot of torch's CUDA allocator in each rank, through the endpoint that torch.profiler asks.

What is allocated where, with the history of a short window: what was allocated and freed in it, with stacks. Written by torch as
a pickle, which pytorch.org/memory_viz opens in a browser; it is never unpickled here. Tried with torch 2.11 on an H200; a
torch without CUDA offers none.
"""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from perfwatch.captures.capture import CUPTI, Collected, File, Request, Scene, Subject, Window
from perfwatch.captures.kineto.protocol import Ask
from perfwatch.captures.kineto_link import check
from perfwatch.captures.torch_files import CHUNK_BYTES, pids_inside
from perfwatch.captures.torch_window import LEAD_SECONDS, LOOK_SECONDS, MOST_SECONDS, names, torch_window
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable
from perfwatch.text import duration

NAME = "memory"
SUMMARY = "a snapshot of the CUDA allocator: what is allocated, and by whom in the last seconds"
DISTURBS = (
    "each allocation in the window takes a stack: small steps are slower by a few per cent; 16 MB for a small decoder"
)
USES = frozenset({CUPTI})
TRIGGERED_BY = ""
OPTIONS: Mapping[str, str] = {}

SECONDS = 1.0
WRITE_SECONDS = 20.0
ESTIMATED_BYTES = 64 * 2**20  # of a rank
VIEWER = "pytorch.org/memory_viz"
CUDA_LIBRARY = b"libtorch_cuda"
LONGEST_MAPS_BYTES = 16 * 2**20


def belongs_to_the_user(scene: Scene) -> bool:
    """The endpoint and the snapshots are."""
    return True


def available(request: Request, scene: Scene) -> None:
    """Raises what speaks against it: not armed, no CUDA, or a hang, for taking stacks wants the GIL."""
    subjects = scene.wanted(request)
    if scene.may_be_hung:
        raise CaptureRefused(
            "the job hangs, or may: a snapshot takes Python stacks, which wait for the GIL",
            "perfwatch attach names the stacks",
        )
    for subject in subjects:
        if not _has_cuda(subject.pid, scene.proc):
            raise CaptureUnavailable(
                f"{names([subject])} has loaded no torch with CUDA: only the CUDA allocator can be asked for a snapshot",
                "python -c 'import torch; print(torch.version.cuda)'",
            )
    check(scene, subjects)
    if request.seconds is not None and request.seconds > MOST_SECONDS:
        raise CaptureRefused(f"--seconds is too long: {duration(MOST_SECONDS)} at most", "--seconds 2")


def estimated_bytes(request: Request, scene: Scene) -> int:
    """Of the snapshots of all ranks."""
    return ESTIMATED_BYTES * max(1, len(scene.wanted(request)))


def command(request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
    """None: the recorder is part of the job."""
    return ()


def collect(request: Request, scene: Scene, window: Window) -> Collected:
    """Have every rank record its allocator for a moment; bring the snapshots."""
    subjects = scene.wanted(request)
    seconds = request.seconds if request.seconds is not None else SECONDS
    with torch_window(request, scene, window, subjects) as (asked, folder):
        subjects = asked.reached(subjects)
        for subject in subjects:
            _forget(subject, scene.proc)
        ask = Ask(folder.file, duration_ms=int(seconds * 1000), allocations=True)
        asked.offer(subjects, {one.pid: ask for one in subjects})
        window.opened()
        window.tell(f"recording allocations for {seconds:g} s")
        found = _written(subjects, scene, window, LEAD_SECONDS + seconds + WRITE_SECONDS)
        window.closed()
        files = tuple(_brought(one, path, window.folder) for one, path in found)
    missing = [one for one in subjects if one.pid not in {file.pid for file in files}]
    notes = (*asked.notes, f"{names(missing)} wrote no snapshot") if missing else tuple(asked.notes)
    return Collected(files=files, window_seconds=seconds, notes=notes)


def _has_cuda(pid: int, proc: Path) -> bool:
    try:
        with (proc / str(pid) / "maps").open("rb") as maps:
            return CUDA_LIBRARY in maps.read(LONGEST_MAPS_BYTES)
    except OSError:
        return False


def _snapshot(subject: Subject, proc: Path) -> Path:
    """Where torch writes it, whatever it is told: in the job's own /tmp."""
    inside = (pids_inside(subject.pid, proc) or [subject.pid])[-1]
    return proc / str(subject.pid) / "root" / "tmp" / f"memory_snapshot_{inside}.pickle"


def _forget(subject: Subject, proc: Path) -> None:
    """Remove the snapshot of an earlier time, so that this one's is known by its being there."""
    with contextlib.suppress(FileNotFoundError):
        _snapshot(subject, proc).unlink()


def _written(subjects: tuple[Subject, ...], scene: Scene, window: Window, seconds: float) -> list[tuple[Subject, Path]]:
    """The snapshots, once each has stopped growing."""
    ends = window.clock() + seconds
    sizes: dict[int, int] = {}
    done: dict[int, Path] = {}
    while len(done) < len(subjects) and window.clock() < ends:
        for subject in subjects:
            path = _snapshot(subject, scene.proc)
            with contextlib.suppress(FileNotFoundError):
                size = path.lstat().st_size
                if size and sizes.get(subject.pid) == size:
                    done[subject.pid] = path
                sizes[subject.pid] = size
        window.wait(2 * LOOK_SECONDS)
    if not done:
        raise CaptureFailed(
            "no rank has written a snapshot: this torch does not offer one on demand",
            'torch.cuda.memory._record_memory_history() and _dump_snapshot("file") in the program',
        )
    return [(one, done[one.pid]) for one in subjects if one.pid in done]


def _brought(subject: Subject, source: Path, folder: Path) -> File:
    """Copy a rank's snapshot into the session and remove the original."""
    name = f"rank{subject.rank}" if subject.rank is not None else f"pid{subject.pid}"
    target = folder / f"{name}.memory.pickle"
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as raw:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CaptureFailed(f"{source} is not a regular file")
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "wb") as copy:
            while chunk := raw.read(CHUNK_BYTES):
                copy.write(chunk)
    source.unlink(missing_ok=True)
    return File(
        path=str(target), size_bytes=target.stat().st_size, pid=subject.pid, rank=subject.rank, opens_with=VIEWER
    )
