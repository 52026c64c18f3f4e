"""Follow a recording while it is written: what is new since the last read, and all of it as a history."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

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

MOST_READ_BYTES = 64 * 2**20  # of a file in one look: segments have 8 MiB


@dataclass
class _Read:
    """How far one file was read; ``rest``: the beginning of a line that is not finished; ``stacks``: that it has defined."""

    inode: int
    stacks: StackTable
    offset: int = 0
    rest: bytes = b""


class Follower:
    """Reads a session folder that somebody else writes; nothing in it is touched.

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
        """Whether somebody writes it now; ``wall`` is unix time.

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
                before = self._files.get(name)
                if before is not None and (before.inode != state.st_ino or state.st_size < before.offset):
                    # Thinned to keep within the budget. No reading in it is new; an event is, for which room was made.
                    seen = 0 if name.startswith(EVENTS) else state.st_size
                    self._files[name] = _Read(state.st_ino, StackTable(self._shared), seen)
                reached = self._files.setdefault(name, _Read(state.st_ino, StackTable(self._shared)))
                file.seek(reached.offset)
                size = min(state.st_size - reached.offset, MOST_READ_BYTES)
                room.take(size)
                fresh = file.read(size)
                data = reached.rest + fresh
                reached.offset += len(fresh)
                *lines, reached.rest = data.split(b"\n")
                if len(reached.rest) > LONGEST_LINE_BYTES:
                    reached.rest = b""
                return state.st_mtime, lines
        except PermissionError:
            raise
        except OSError:
            return 0.0, []

    def _take(self, name: str, line: bytes, room: Room) -> bool:
        """Whether a line brings anything new."""
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
