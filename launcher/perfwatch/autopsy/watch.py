"""``autopsy --watch``: a folder of logs and dumps, judged job by job as jobs end there.

A job is a folder below the watched one, or a file in it. What its files say last is copied to a private place as it is written:
the end of each log, dumps and answers as a whole. So a restart that truncates or replaces the files removes nothing that is needed.
A job has ended when none of its files has changed for a while, or when one was truncated, replaced or removed. Then the copies are
judged. Files that tell of no end give no verdict.

All files are looked at in a child that may be killed. Copies are bounded for each file and for all together.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perfwatch.autopsy.files import find_files
from perfwatch.autopsy.kinds import DUMP, DUMP_JSON, HEAD_BYTES, LOG, kind_of
from perfwatch.autopsy.recording_of import Gathered, gather, recording_of
from perfwatch.postmortem import diagnose
from perfwatch.recording.recording import Recording
from perfwatch.recording.redaction import redact
from perfwatch.verdict import Verdict
from perfwatch_probes.deadline import Caller
from perfwatch_probes.guest import folder_below, opened
from perfwatch_probes.probe import Unavailable

QUIET_SECONDS = 30.0  # torchrun ends the other ranks within 30 s of a failure, and a watchdog its process within a minute of its line
LIST_SECONDS, COPY_SECONDS = 10.0, 20.0
TAIL_BYTES = 2**20  # of a log
LARGEST_COPY_BYTES = 64 * 2**20  # of anything else: as ``reading`` reads it
MOST_COPIED_BYTES = 2**30
MOST_JOBS = 1024
KEPT, LAST_BYTES, MOST_KEPT_BYTES = "left", 2**16, 64 * 2**20  # a folder of a session; of each log; in all
ENDS = ("gone", "hung")


class State(msgspec.Struct, frozen=True):
    """What tells that a file has changed."""

    device: int
    inode: int
    size: int
    modified: float

    def replaced_by(self, newer: "State") -> bool:
        """True if what was there is lost."""
        return (self.device, self.inode) != (newer.device, newer.inode) or newer.size < self.size


class Listing(msgspec.Struct, frozen=True):
    """The files below a folder, by path."""

    files: dict[str, State]


def list_files(folder: str) -> Listing:
    """Runs in a guest. Raises OSError."""
    if not os.path.isdir(folder):
        raise OSError(errno.ENOTDIR, f"{folder} is no folder")
    found = {}
    for path in find_files([folder]).files:
        try:
            now = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(now.st_mode):
            found[path] = State(now.st_dev, now.st_ino, now.st_size, now.st_mtime)
    return Listing(found)


def copy_end(source: str, top: str, target: str) -> int:
    """The end of a log, or all of another file, in a private file; how many bytes that are. Runs in a guest. Raises OSError.

    top: the watched folder, below which no link is followed.
    """
    folder = folder_below(top, source)
    try:
        descriptor = opened(f"/proc/self/fd/{folder}/{os.path.basename(source)}", follow=False)
    except ValueError as error:
        raise OSError(0, str(error)) from None
    finally:
        os.close(folder)
    with open(descriptor, "rb") as file:
        now = os.fstat(descriptor)
        head = file.read(HEAD_BYTES)
        is_log = kind_of(head) == LOG
        if not is_log and now.st_size > LARGEST_COPY_BYTES:
            return 0
        if is_log and now.st_size > TAIL_BYTES:
            file.seek(-TAIL_BYTES, os.SEEK_END)
            file.readline()
        else:
            file.seek(0)
        content = file.read(LARGEST_COPY_BYTES)
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    made = os.open(f"{target}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(made, "wb") as copy:
        copy.write(content)
    os.utime(f"{target}.new", (now.st_mtime, now.st_mtime))
    os.replace(f"{target}.new", target)
    return len(content)


def keep_copies(copies: Path, session: Path) -> list[Path]:
    """Put the last lines of each log, without secrets, and the dumps as they are beside a session. Raises OSError."""
    kept: list[Path] = []
    left = MOST_KEPT_BYTES
    for path in sorted(copies.rglob("*")) if copies.is_dir() else [copies]:
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        kind = kind_of(content[:HEAD_BYTES])
        if kind == LOG:
            lines = content[-LAST_BYTES:].decode("utf-8", "replace").split("\n")
            content = "\n".join(map(redact, lines)).encode("utf-8", "replace")
        elif kind not in (DUMP, DUMP_JSON):
            continue
        left -= len(content)
        if left < 0:
            break
        target = session / KEPT / path.relative_to(copies.parent)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
        kept.append(target)
    return kept


@dataclass
class _Job:
    """The files of one job, and since when none has changed."""

    files: dict[str, State] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)  # bytes, by path
    changed_at: float = 0.0
    is_judged: bool = True


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its folder or file, what was read, the verdict, and where the copies are until the next look."""

    name: str
    recording: Recording
    verdict: Verdict
    copies: Path


class FolderWatch:
    """Looks at a folder again and again.

    Args:
        folder: absolute.
        spool: a private folder for the copies.
        child: looks at files, and may be killed over one.
        clock: monotonic seconds.
        now: unix time.
        quiet_seconds: after the last change a job has ended.
    """

    def __init__(
        self,
        folder: str,
        spool: Path,
        child: Caller,
        clock: Callable[[], float],
        now: Callable[[], float],
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._folder, self._spool, self._child = folder.rstrip("/"), spool, child
        self._clock, self._now, self._quiet = clock, now, quiet_seconds
        self._jobs: dict[str, _Job] = {}
        self._began = False
        self.trouble = ""  # why the newest look failed

    def turn(self) -> Iterator[Ended]:
        """Look once; the jobs that are found to have ended."""
        try:
            listed = self._child.call(list_files, self._folder, deadline_seconds=LIST_SECONDS)
        except (Unavailable, OSError) as error:
            self.trouble = str(error)
            return
        self.trouble = ""
        by_job: dict[str, dict[str, State]] = {}
        for path, state in listed.files.items():
            by_job.setdefault(path[len(self._folder) + 1 :].partition("/")[0], {})[path] = state
        for name in list(dict.fromkeys([*self._jobs, *by_job]))[:MOST_JOBS]:
            yield from self._look(name, by_job.get(name, {}))
        self._began = True

    def _look(self, name: str, files: dict[str, State]) -> Iterator[Ended]:
        job = self._jobs.setdefault(name, _Job())
        lost = any(path not in files or before.replaced_by(files[path]) for path, before in job.files.items())
        if lost and not job.is_judged:
            yield from self._judge(name, job)
        if lost:
            self._forget(name, job)
        changed = [path for path, state in files.items() if job.files.get(path) != state]
        for path in changed:
            self._copy(job, path)
        job.files = files
        if changed and self._began:  # what lay there at the start has ended before: it is only remembered
            job.changed_at, job.is_judged = self._clock(), False
        if not files:
            del self._jobs[name]
        elif not job.is_judged and self._clock() - job.changed_at >= self._quiet:
            yield from self._judge(name, job)

    def _copy(self, job: _Job, path: str) -> None:
        if sum(size for one in self._jobs.values() for size in one.copied.values()) > MOST_COPIED_BYTES:
            self.trouble = f"the copies reach {MOST_COPIED_BYTES >> 30} GiB: {path} is read where it lies"
            return
        try:
            job.copied[path] = self._child.call(
                copy_end, path, self._folder, self._copy_of(path), deadline_seconds=COPY_SECONDS
            )
        except (Unavailable, OSError) as error:
            self.trouble = f"{path}: {error}"

    def _copy_of(self, path: str) -> str:
        return f"{self._spool}/{path[len(self._folder) + 1 :]}"

    def _judge(self, name: str, job: _Job) -> Iterator[Ended]:
        """What the copies tell; nothing where no end is told."""
        job.is_judged = True
        found: Gathered = gather([f"{self._spool}/{name}"], self._child, clock=self._clock)
        if not found.read:
            return
        recording = recording_of(found, ("perfwatch", "autopsy", "--watch", f"{self._folder}/{name}"), self._now())
        verdict = diagnose(recording)
        if verdict.state in ENDS and verdict.cause != "finished":
            yield Ended(name, recording, verdict, self._spool / name)

    def _forget(self, name: str, job: _Job) -> None:
        """Make room for the next attempt: its files are other ones."""
        for path in job.copied:
            try:
                os.unlink(self._copy_of(path))
            except OSError:
                continue
        job.files, job.copied = {}, {}
