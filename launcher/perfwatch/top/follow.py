"""Follow a recording while it is written: what is new since the last read, and all of it as a history."""

import io
import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path

from perfwatch.recording.compression import is_compressed, plain
from perfwatch.recording.damage import DAMAGED
from perfwatch.recording.recording import Event, load_session, parse_event, parse_record
from perfwatch.recording.segments import EVENTS, READINGS, STACKS
from perfwatch.recording.session_lines import LONGEST_LINE_BYTES, Room
from perfwatch.recording.stack_tables import SharedStacks, StackTable
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.job import Job
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import MOST_FILES

REMEMBER_SECONDS = 600.0  # as the watcher itself does; counters and marks of before are in the recording
STALE_SECONDS = 20.0  # a calm watcher writes every second, and one whose disk is slow every few
AHEAD_SECONDS = 2.0  # the present is the newest line, plus what a looking watcher may be late

MOST_READ_BYTES = 64 * 2**20  # of a file in one look: segments have 2 MiB, those of earlier versions 8
MOST_EXPANDED_BYTES = 16 * 2**20  # of a compressed one, which is read as a whole
PART_BYTES = 2**16


@dataclass
class _Read:
    """How far one file was read.

    stacks: what it has defined. offset: in its lines, compressed or not. crc: of the lines up to there. rest: the beginning of a
    line that is not finished. complete: it is compressed, nothing is added.
    """

    inode: int
    stacks: StackTable
    offset: int = 0
    crc: int = 0
    rest: bytes = b""
    complete: bool = False

    def take(self, fresh: bytes) -> list[bytes]:
        """The lines that what was read next makes whole."""
        self.offset += len(fresh)
        self.crc = zlib.crc32(fresh, self.crc)
        *lines, self.rest = (self.rest + fresh).split(b"\n")
        if len(self.rest) > LONGEST_LINE_BYTES:
            self.rest = b""
        return lines


class Follower:
    """Reads a session folder that another process writes; nothing in it is touched.

    Args:
        folder: the session.

    Raises:
        SessionUnreadable: as ``perfwatch.recording.recording.load``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session = load_session(folder)
        self.history = History()
        self.events: list[Event] = []
        self.skipped = 0
        self._files: dict[str, _Read] = {}
        self._shared = SharedStacks()
        self._given: set[tuple[float, str, str]] = set()  # what tells an event, also one that has lost its verdict
        self._newest = 0.0
        self._written = 0.0  # unix time of the newest line, by the clock of its file
        self._job: Job | None = None
        self._revision = -1

    def read(self) -> bool:
        """Take in what is new; whether there was anything.

        Raises:
            PermissionError: a file may not be read.
            SessionUnreadable: more is new than any session holds.
        """
        found = False
        room = Room(self.folder)
        names = sorted(self._names())[:MOST_FILES]
        # The last of each stream; number 10000 is longer than 9999.
        newest = {name.partition("-")[0]: name for name in sorted(names, key=lambda name: (len(name), name))}
        for name in names:
            written, lines = self._new_lines(name, room)
            before = self._newest
            for line in lines:
                room.take_line(line)
                found = self._take(name, line, room) or found
            if lines and (self._newest > before or not self._written):
                self._written = written
            if name != newest[name.partition("-")[0]] and name in self._files:
                self._files[name].stacks.clear()  # no more is written to it
        if found:
            self.events.sort(key=lambda event: event.at)
            self.history.at = max(self.history.at, self._newest)
            self.history.forget(self._newest - REMEMBER_SECONDS)
        return found

    @property
    def ended(self) -> Event | None:
        """How the job ended, if the recording says so."""
        return next((event for event in reversed(self.events) if event.kind == "outcome"), None)

    def live(self, wall: float) -> bool:
        """True if a process writes it now; ``wall`` is unix time.

        Told by when its files were written: a clock that was set, or that went on while the machine slept, has left the
        recording's own seconds behind for good.
        """
        return self.ended is None and abs(wall - self._written) < STALE_SECONDS

    def now(self, wall: float) -> float:
        """The present, or when the recording ended, in seconds of the recording."""
        late = min(max(0.0, wall - self._written), AHEAD_SECONDS)
        return self._newest + late if self.live(wall) else self._newest

    def case(self, wall: float) -> Case:
        """Everything that is known at this moment, or was when the recording ended."""
        self.history.at = self.now(wall)
        revision = self.history.added(r.Process, r.ProcessEnded, r.Stack)
        known = self._job if revision == self._revision else None
        case = Case(self.history, self.session, self.events, known)
        self._job, self._revision = case.job, revision
        return case

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except PermissionError:
            raise
        except OSError:
            return []
        return [name for name in names if name.startswith((READINGS, STACKS, EVENTS)) and name.endswith(".jsonl")]

    def _new_lines(self, name: str, room: Room) -> tuple[float, list[bytes]]:
        """When the file was written, and the lines that are new in it."""
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                state = os.fstat(descriptor)
                if not stat.S_ISREG(state.st_mode):
                    return state.st_mtime, []
                reached = self._files.setdefault(name, _Read(state.st_ino, StackTable(self._shared)))
                if reached.complete and reached.inode == state.st_ino:
                    return state.st_mtime, []
                if is_compressed(file):
                    return state.st_mtime, self._compressed(reached, file, room)
                if reached.inode != state.st_ino or state.st_size < reached.offset:
                    # Thinned to keep within the budget. No reading in it is new; an event is, for which room was made.
                    seen = 0 if name.startswith(EVENTS) else state.st_size
                    reached = self._files[name] = _Read(state.st_ino, StackTable(self._shared), seen)
                file.seek(reached.offset)
                size = min(state.st_size - reached.offset, MOST_READ_BYTES)
                room.take(size)
                return state.st_mtime, reached.take(file.read(size))
        except PermissionError:
            raise
        except OSError:
            return 0.0, []

    def _compressed(self, reached: _Read, file: io.BufferedReader, room: Room) -> list[bytes]:
        """What is new in a file that is complete: what lies behind the lines that were read, and nothing where it was thinned."""
        reached.inode, reached.complete = os.fstat(file.fileno()).st_ino, True
        content, data = plain(file, room.take), bytearray()
        try:
            while part := content.read1(PART_BYTES):
                room.take(len(part))
                data += part
                if len(data) > MOST_EXPANDED_BYTES:
                    raise zlib.error("no segment is as long")
        except zlib.error:
            self.skipped += 1
        seen = memoryview(data)[: reached.offset]
        return reached.take(bytes(data[reached.offset :])) if zlib.crc32(seen) == reached.crc else []

    def _take(self, name: str, line: bytes, room: Room) -> bool:
        """True if a line brings anything new."""
        try:
            if name.startswith(EVENTS):
                event = parse_event(line)
                if (told := (event.at, event.kind, event.text)) in self._given:
                    return False
                self._given.add(told)
                self.events.append(event)
                self._newest = max(self._newest, event.at)
            else:
                record = parse_record(line, self._files[name].stacks, room)
                if record is None:
                    return False
                self.history.add(record.at, record.reading)
                self._newest = max(self._newest, record.at)
        except DAMAGED:  # torn, or of a newer version
            self.skipped += 1
            return False
        return True
