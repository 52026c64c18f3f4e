"""The files of a session, as its writer process keeps them: appended to, cut into segments, thinned when over budget.

``readings-0001.jsonl``, ``stacks-0001.jsonl`` ... and one ``events.jsonl``. A segment that is full, or of a session that ends, is
compressed (``perfwatch.recording.compression``); where the disk has no room for that, when there is. When the budget is exceeded
the oldest segment that no verdict has pinned is thinned (the last reading of each entity per ten seconds), then stripped to what
stays true (who the processes are, how they ended), then removed. The last half hour is the black box: it is kept whole
for as long as anything older can be given up, and where it alone exceeds the budget, as much of it as half the budget
holds. An incident pins it. A little room of the disk is set aside: when the disk is full, ``session.json`` and the verdicts still fit.
A file of ``stacks`` defines each frame and each stack once (``perfwatch.recording.stack_tables``).
This file may block or fail at any line: it runs in a process of its own (``perfwatch.recording.writer``).
"""

import contextlib
import errno
import fcntl
import io
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from perfwatch.recording.compression import compress, is_compressed, plain, plain_size
from perfwatch.recording.session import PRIVATE_FILE
from perfwatch.recording.stack_tables import DEFINITION, StackNumbers, whole_lines
from perfwatch.recording.thinning import FULL, STRIPPED, THINNED, at_of, kept, newest, without_verdict
from perfwatch.recording.unnamed import replacement, unnamed
from perfwatch_probes.bounds import MOST_FILES, SESSION_BYTES

READINGS, STACKS, EVENTS = "readings", "stacks", "events"
BLACK_BOX_SECONDS = 1800.0
LOOSE, BLACK_BOX, EVIDENCE = 0, 1, 2  # how firmly a segment is pinned
SEGMENT_BYTES = 2 * 2**20  # compressed in 15 ms; a session that is killed leaves so much of each stream as it is
SEGMENTS_IN_BUDGET = 16  # small budgets get small segments, so that something can be given up before all is
MOST_LINES_BYTES = SESSION_BYTES // 4  # before compression; readers, which load all of it, accept four times as much
MOST_SEGMENTS = MOST_FILES // 2  # and twice as many files
RESERVE_BYTES = 64 * 1024  # a verdict has about 3 KiB
RESERVE_STEP_BYTES = 4096  # a block of most file systems
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class _Segment:
    """A file of a stream. size: on disk. lines_bytes: before compression."""

    def __init__(self, name: str, first_at: float) -> None:
        self.name, self.first_at, self.level, self.pinned = name, first_at, FULL, LOOSE
        self.size = self.lines_bytes = 0
        self.compressed = False


class Segments:
    """Appends lines to the files of ``folder`` and keeps their sum within ``budget_bytes``, and their lines within ``MOST_LINES_BYTES``.

    ``say`` is told, in a sentence, whatever was given up.
    """

    def __init__(self, folder: Path, budget_bytes: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._budget = budget_bytes
        self._say = say
        self._segment_bytes = min(SEGMENT_BYTES, max(4096, budget_bytes // SEGMENTS_IN_BUDGET))
        self._events_bytes = budget_bytes // 8
        self._segments: list[_Segment] = []  # oldest first
        self._total = 0  # what they take of the budget
        self._open: dict[str, tuple[int, _Segment]] = {}
        self._numbers = {READINGS: 0, STACKS: 0}
        self._stacks = StackNumbers()  # of the open segment of stacks
        self._reserve: int | None = None  # an unnamed file that occupies what is set aside; None before the first line
        self._undescribed: bytes | None = None  # the description that the disk had no room for
        self._held = hold(folder)
        if (
            self._held >= 0
        ):  # this very folder, whatever its path names later: the owner of the one above may exchange it
            self._folder = Path(f"/proc/self/fd/{self._held}")
        self._adopt()

    def describe(self, session: bytes) -> None:
        """Replace ``session.json`` in one step, so that a reader sees the old or the new one, never half."""
        self._undescribed = session
        self._with_reserve(partial(self._described, session))
        self._undescribed = None

    def append(self, stream: str, line: bytes) -> None:
        """Add one line (with its newline). Raises OSError after taking back whatever part of it was written."""
        if self._reserve is None:
            self._set_aside()
        write = partial(self._written, stream, line)
        if stream == EVENTS:
            self._with_reserve(write)
        else:
            write()
        if self._undescribed is not None:  # there is room again
            with contextlib.suppress(OSError):
                self.describe(self._undescribed)
        if self._is_over():
            self._shrink(at_of(line))

    def _described(self, session: bytes) -> None:
        with replacement(self._folder / "session.json") as descriptor:
            _write_all(descriptor, session)

    def _written(self, stream: str, line: bytes) -> None:
        descriptor, segment = self._opened(stream, line)
        if stream == EVENTS and segment.size + len(line) > self._events_bytes:
            descriptor, segment = self._with_fewer_events(line)
        data = self._stacks.stored(line) if stream == STACKS else line
        try:
            _write_whole(descriptor, data, segment.size)
        except OSError:
            self._stacks.forget()
            raise
        if stream == EVENTS:
            segment.size += len(data)
            return
        self._resize(segment, segment.size + len(data), segment.lines_bytes + len(data))
        if segment.size >= self._segment_bytes:
            os.close(descriptor)
            del self._open[stream]
            self._compress()

    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None:
        """Protect every segment that overlaps this time, and of an ``incident`` the half hour before it.

        Once half the budget is pinned pins give way: the oldest half hours first, then what the oldest verdicts rest on.
        """
        for segment, end in self._with_ends():
            if segment.first_at <= last_at and end >= first_at:
                segment.pinned = EVIDENCE
            elif incident and segment.first_at <= last_at and end >= first_at - BLACK_BOX_SECONDS:
                segment.pinned = max(segment.pinned, BLACK_BOX)
        pinned = sorted((one for one in self._segments if one.pinned), key=lambda one: (one.pinned, one.first_at))
        while len(pinned) > 1 and sum(map(self._taken, pinned)) > self._budget // 2:
            pinned[0].pinned = LOOSE
            self._say(f"the pins of verdicts fill half of the disk budget: {pinned.pop(0).name} may be thinned now")

    def total_bytes(self) -> int:
        """What all of it takes of the budget."""
        events = self._open.get(EVENTS)
        return self._total + (events[1].size if events else 0)

    def close(self) -> None:
        """Close what is open, and compress it."""
        for descriptor, _ in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._released()
        self._compress()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _taken(self, segment: _Segment) -> int:
        """What a segment takes of the budget: its size on disk, or its part of the lines that a session may have if that is more."""
        return max(segment.size, segment.lines_bytes * self._budget // MOST_LINES_BYTES)

    def _resize(self, segment: _Segment, size: int, lines_bytes: int) -> None:
        self._total -= self._taken(segment)
        segment.size, segment.lines_bytes = size, lines_bytes
        self._total += self._taken(segment)

    def _compress(self) -> None:
        """Compress what is complete. Where the disk has no room for that, it is tried again when the next segment is."""
        being_written = [segment for _, segment in self._open.values()]
        for segment in self._segments:
            if not segment.compressed and segment not in being_written:
                self._rewritten(segment, segment.level)

    def _set_aside(self) -> None:
        """Reserve half of what the disk has left, and no more than a few verdicts need."""
        most = min(RESERVE_BYTES, self._budget // 64)
        half = self._occupy(2 * most) // 2
        if self._reserve is not None:
            os.ftruncate(self._reserve, half)

    def _occupy(self, most_bytes: int) -> int:
        """Reserve as many bytes as the disk has left, at most so many; returns how many that are."""
        got = 0
        with contextlib.suppress(OSError):
            self._reserve = unnamed(self._folder)
            while got + RESERVE_STEP_BYTES <= most_bytes:
                os.posix_fallocate(self._reserve, got, RESERVE_STEP_BYTES)
                got += RESERVE_STEP_BYTES
        return got

    def _released(self) -> int:
        """Give the reserve back to the disk; returns how many bytes that are."""
        if self._reserve is None:
            return 0
        size = os.fstat(self._reserve).st_size
        os.close(self._reserve)
        self._reserve = None
        return size

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Write what must be stored also on a full disk: into the reserve, which keeps what remains of it.

        Raises OSError where even that is not enough.
        """
        try:
            write()
        except OSError as error:
            held = self._released() if error.errno in FULL_DISK else 0
            if not held:
                raise
            try:
                write()
            finally:
                self._occupy(held)

    def _adopt(self) -> None:
        """Count in what a writer before us, which died, has left."""
        for path in self._folder.glob("*-[0-9]*.jsonl"):
            stream, _, number = path.stem.partition("-")
            if stream in self._numbers and number.isdecimal() and path.is_file() and not path.is_symlink():
                segment, size, lines_bytes = _adopted(path)
                self._segments.append(segment)
                self._resize(segment, size, lines_bytes)
                self._numbers[stream] = max(self._numbers[stream], int(number))
        # Not by when they were last written: thinning writes the oldest last. One of which nothing is left is at 0.0.
        self._segments.sort(key=lambda segment: (segment.first_at, segment.name))

    def _opened(self, stream: str, line: bytes) -> tuple[int, _Segment]:
        if stream not in self._open:
            name = "events.jsonl" if stream == EVENTS else self._next_name(stream)
            descriptor = _create(self._folder / name, 0 if stream == EVENTS else os.O_EXCL)
            segment = _Segment(name, at_of(line))
            segment.size = os.fstat(descriptor).st_size
            if stream != EVENTS:
                self._segments.append(segment)
            if stream == STACKS:
                self._stacks = StackNumbers()
            self._open[stream] = (descriptor, segment)
        return self._open[stream]

    def _next_name(self, stream: str) -> str:
        """The number goes up also when the file then cannot be made: something else may lie there."""
        self._numbers[stream] += 1
        return f"{stream}-{self._numbers[stream]:04}.jsonl"

    def _with_ends(self) -> list[tuple[_Segment, float]]:
        """Each segment and when the next one of its stream begins."""
        found = []
        for stream in (READINGS, STACKS):
            mine = [segment for segment in self._segments if segment.name.startswith(stream)]
            ends = [following.first_at for following in mine[1:]] + [math.inf]
            found += list(zip(mine, ends[: len(mine)], strict=True))
        return found

    def _victim(self, now: float) -> _Segment | None:
        """What is given up next; min() and max() keep the oldest of equals."""
        being_written = [segment for _, segment in self._open.values()]
        ends = {id(segment): end for segment, end in self._with_ends()}
        free = [segment for segment in self._segments if not segment.pinned and segment not in being_written]
        if len(self._segments) > MOST_SEGMENTS:
            return max(free, key=lambda segment: segment.level, default=None)
        old = [segment for segment in free if ends[id(segment)] < now - BLACK_BOX_SECONDS]
        if old or not free:
            return min(old, key=lambda segment: segment.level, default=None)
        whole = sum(self._taken(segment) for segment in self._segments if segment.level == FULL)
        worn = [segment for segment in free if segment.level != FULL]
        if worn and whole <= self._budget // 2:
            return min(worn, key=lambda segment: segment.level)
        return min(free, key=lambda segment: segment.level)

    def _is_over(self) -> bool:
        return self.total_bytes() > self._budget or len(self._segments) > MOST_SEGMENTS

    def _shrink(self, now: float) -> None:
        while self._is_over():
            victim = self._victim(now)
            if victim is None:
                return
            before, thinner = self._taken(victim), victim.level + 1
            few = len(self._segments) <= MOST_SEGMENTS
            if few and thinner <= STRIPPED and self._rewritten(victim, thinner) and victim.lines_bytes:
                how = "thinned" if victim.level == THINNED else "stripped to who was who"
            else:
                (self._folder / victim.name).unlink(missing_ok=True)
                self._segments.remove(victim)
                self._resize(victim, 0, 0)
                how = "removed"
            self._say(
                f"disk budget of {self._budget} bytes: {victim.name} {how}, {before - self._taken(victim)} bytes given up"
            )

    def _with_fewer_events(self, line: bytes) -> tuple[int, _Segment]:
        """Events have used their eighth of the budget: the newest are kept, those before lose their verdicts, the rest goes.

        Raises OSError where even that makes no room for ``line``.
        """
        descriptor, segment = self._open.pop(EVENTS)
        os.close(descriptor)
        path = self._folder / "events.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        newer = newest(lines, self._events_bytes // 4)
        worn = newest([without_verdict(one) for one in lines[: len(lines) - len(newer)]], self._events_bytes // 4)
        with replacement(path) as output:
            _write_all(output, b"".join([*worn, *newer]))
        self._say("the events have used their eighth of the disk budget: older ones keep no verdicts")
        descriptor, segment = self._opened(EVENTS, line)
        if segment.size + len(line) > self._events_bytes:
            raise OSError(27, "the events have used their eighth of the disk budget")
        return descriptor, segment

    def _rewritten(self, segment: _Segment, level: int) -> bool:
        """Write a segment anew, thinned to this level and compressed; False when the disk has no room even for that."""
        path = self._folder / segment.name
        try:
            with path.open("rb") as file, replacement(path) as descriptor:
                lines: Iterable[bytes] = plain(file)
                if level != FULL:
                    lines = map(StackNumbers().stored, kept(whole_lines(lines), level))
                lines_bytes = compress(lines, descriptor)
                shutil.copystat(
                    path, f"/proc/self/fd/{descriptor}"
                )  # who may read it, and when its last line was written
                # Begins to write it to the disk, and waits for nothing: some file systems know a new name sooner than the content.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                size = os.fstat(descriptor).st_size
        except (OSError, zlib.error):
            return False
        segment.level, segment.compressed = level, True
        self._resize(segment, size, lines_bytes)
        return True


def _create(path: Path, flags: int = os.O_EXCL) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_APPEND | flags, PRIVATE_FILE)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_whole(descriptor: int, line: bytes, end: int) -> None:
    """Write a line at the end of a file, or leave the file as it was."""
    try:
        _write_all(descriptor, line)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _adopted(path: Path) -> tuple[_Segment, int, int]:
    """A segment that a writer before us has left, its size on disk and that of its lines."""
    with path.open("rb") as file:
        size, lines_bytes = os.fstat(file.fileno()).st_size, plain_size(file)
        segment = _Segment(path.name, 0.0)
        segment.compressed = is_compressed(file)
        with contextlib.suppress(zlib.error):  # one that is damaged counts as the oldest
            segment.first_at = _first_at(plain(file))
    return segment, size, lines_bytes


def _first_at(lines: io.BufferedReader) -> float:
    """When the first reading of a segment was made; the stack that it names is defined before it."""
    line = lines.readline(2**20)
    return at_of(lines.readline(2**20) if line.startswith(DEFINITION) else line)


def hold(folder: Path) -> int:
    """Hold a session while it is written, for as long as the descriptor is open; -1 where that cannot be done.

    Raises OSError where a link has taken its place.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if folder.is_symlink():
            raise
        return -1
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def is_written(folder: str) -> bool:
    """True while a writer holds a session."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
