"""Where the ranks write their traces, and how these come into the session: each file is the job's, and not trusted."""

import gzip
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from perfwatch.captures.capture import File, Scene, Subject
from perfwatch.captures.kineto_link import KIND, TRACES, environment_of
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch.processes.place import private_folder

LARGEST_RAW_BYTES = 8 * 2**30
VIEWERS = "ui.perfetto.dev, or TensorBoard"
GZIP_LEVEL = 4  # 5 % larger than the default at twice its speed
CHUNK_BYTES = 2**20


class TraceFolder:
    """A private folder where the ranks of a scene can write: this process acts as their user.

    Raises CaptureRefused when there can be none.
    """

    def __init__(self, scene: Scene, subjects: tuple[Subject, ...]) -> None:
        self._proc = scene.proc
        self._began_unix = time.time()
        ours = scene.armed.get(KIND, {}).get("traces")
        parent = Path(ours or environment_of(subjects[0], scene.proc).get(TRACES) or "/tmp")
        try:
            if ours:
                private_folder(parent.parent)
                private_folder(parent)
            self.path = Path(tempfile.mkdtemp(prefix="perfwatch-", dir=parent))
        except OSError as error:
            raise CaptureRefused(
                f"the job cannot write traces to {parent}: {error.strerror}", "make room there"
            ) from None

    @property
    def file(self) -> str:
        """What Kineto is told: it adds the pid."""
        return str(self.path / "trace.json")

    def begun(self, subject: Subject) -> bool:
        """True if a rank has begun to record: Kineto opens the file with the window."""
        return any(
            (self.path / f"trace_{pid}.json{ending}").exists()
            for pid in {subject.pid, *pids_inside(subject.pid, self._proc)}
            for ending in ("", ".tmp")
        )

    def trace_of(self, subject: Subject) -> Path | None:
        """The complete trace of a rank, once it is there: Kineto renames it to its name last of all."""
        for pid in {subject.pid, *pids_inside(subject.pid, self._proc)}:
            # Newer Kinetos write there whatever they are told, unless the job's environment names a folder.
            usual = Path("/tmp") / f"libkineto_activities_{pid}.json"
            if (mine := self.path / f"trace_{pid}.json").exists():
                return mine
            if self._is_from(subject, usual):
                return usual
        return None

    def _is_from(self, subject: Subject, usual: Path) -> bool:
        """True if a file in a folder that is open to all is this rank's, and of now: any user can put one there."""
        try:
            state = usual.lstat()
        except OSError:
            return False
        return stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid() and state.st_mtime > self._began_unix

    def close(self) -> None:
        """Remove it, with whatever is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def packed(subject: Subject, source: Path, folder: Path) -> File:
    """Compress a rank's trace into a folder. Raises CaptureFailed when it is not a regular file, or beyond all measure."""
    name = f"rank{subject.rank}" if subject.rank is not None else f"pid{subject.pid}"
    target = folder / f"{name}.pt.trace.json.gz"
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as raw:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST_RAW_BYTES:
            raise CaptureFailed(f"{source} is not a trace: no plain file, or {state.st_size:,} bytes")
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "wb") as plain, gzip.GzipFile("", "wb", GZIP_LEVEL, plain, mtime=0) as compressed:
            size = 0
            while chunk := raw.read(CHUNK_BYTES):
                compressed.write(chunk)
                size += len(chunk)
                if size > LARGEST_RAW_BYTES:
                    raise CaptureFailed(f"{source} grows while it is read: more than {LARGEST_RAW_BYTES:,} bytes")
    return File(
        path=str(target), size_bytes=target.stat().st_size, pid=subject.pid, rank=subject.rank, opens_with=VIEWERS
    )


def pids_inside(pid: int, proc: Path) -> list[int]:
    """The pid as the process itself sees it, where it is in a namespace of its own."""
    try:
        for line in (proc / str(pid) / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    except (OSError, ValueError):
        pass
    return []
