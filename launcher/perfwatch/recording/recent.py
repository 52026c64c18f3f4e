"""Load of a long session what a verdict at one moment rests on, as the watch that made it remembered it.

A watch forgets what is older than ten minutes, but for the last reading of each process, thread and file: what is written on change
still holds. So is a session of hundreds of megabytes judged in the memory of such a watch. Two moments are kept: the one of the last
verdict on the living job, and the end.
"""

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from perfwatch.recording.compression import plain_size
from perfwatch.recording.recording import (
    Cost,
    Event,
    Leftovers,
    Record,
    Recording,
    in_order,
    load_session,
    parse_event,
    parse_record,
    quick_record,
)
from perfwatch.recording.segments import READINGS, STACKS
from perfwatch.recording.session_lines import LONGEST_LINE_BYTES, Room, session_lines
from perfwatch.recording.stack_tables import SharedStacks, StackTable
from perfwatch_probes import bounds
from perfwatch_probes import readings as r

REPORT_LINES = 4096  # between two reports of progress

T = TypeVar("T")
KeyOf = Callable[[r.Reading], Hashable]
Progress = Callable[[int, int], None]


class _Window(Generic[T]):
    """What is remembered of a stream in order of time; ``T`` stands for a record, parsed or not.

    Args:
        seconds: for how long everything is remembered.
        until: a moment at which all that is remembered is kept for good; None: no such moment.
        dropped: told the time of what nothing remembers any more, and the record.
    """

    def __init__(self, seconds: float, until: float | None, dropped: Callable[[float, T], None]) -> None:
        self._seconds, self._until, self._dropped = seconds, until, dropped
        self._recent: deque[tuple[float, int, Hashable, T]] = deque()
        self._latest: dict[Hashable, tuple[float, int, T]] = {}
        self._kept: dict[int, T] = {}
        self._count, self._newest = 0, 0.0

    def add(self, at: float, key: Hashable, one: T) -> None:
        """One more, which is newer than those before, as a rule."""
        if self._until is not None and at > self._until:
            self._keep()
        self._newest = max(self._newest, at)
        self._count += 1
        self._recent.append((at, self._count, key, one))
        before = self._newest - self._seconds
        while self._recent[0][0] < before:
            self._age(*self._recent.popleft())

    def end(self) -> list[T]:
        """All that is remembered."""
        self._keep()
        return list(self._kept.values())

    def _age(self, at: float, number: int, key: Hashable, one: T) -> None:
        """Of what is old only the last of each entity is remembered."""
        known = self._latest.get(key)
        if known is None or known[0] <= at:
            self._latest[key] = (at, number, one)
            if known is not None and known[1] not in self._kept:
                self._dropped(known[0], known[2])
        elif number not in self._kept:
            self._dropped(at, one)

    def _keep(self) -> None:
        self._until = None
        self._kept.update((number, one) for _, number, one in self._latest.values())
        self._kept.update((number, one) for _, number, _, one in self._recent)


def load_recent(
    path: Path,
    key_of: KeyOf,
    seconds: float,
    moment: Callable[[Sequence[Event]], float | None],
    progress: Progress,
) -> Recording:
    """The part of a session that verdicts at its end and at one more moment rest on.

    Args:
        path: its folder.
        key_of: what tells two entities of one kind of reading apart.
        seconds: for how long a watch remembers everything.
        moment: the other moment, by the events of the session; None: there is none.
        progress: called with the bytes that are read, and all of them.

    Raises as ``load`` does.
    """
    session = load_session(path)
    leftovers = Leftovers(Room(path))
    events = sorted(leftovers.decoded(path / "events.jsonl", parse_event), key=lambda event: event.at)
    files = {stream: sorted(islice(path.glob(f"{stream}*.jsonl"), bounds.MOST_FILES)) for stream in (READINGS, STACKS)}
    done = _Done(progress, [file for some in files.values() for file in some])
    until, cost = moment(events), _Costs(moment(events))
    readings: _Window[bytes] = _Window(seconds, until, lambda at, line: cost.add(line))
    for file in files[READINGS]:
        for line in done.lines(file, leftovers):
            record = leftovers.parsed(line, quick_record)
            if record is not None:
                readings.add(record.at, (type(record.reading), key_of(record.reading)), line)
    stacks: _Window[Record] = _Window(seconds, until, lambda at, record: None)
    shared = SharedStacks()
    for file in files[STACKS]:
        parse = partial(parse_record, stacks=StackTable(shared), room=leftovers.room)
        for line in done.lines(file, leftovers):
            record = leftovers.parsed(line, parse)
            if record is not None:
                stacks.add(record.at, (type(record.reading), key_of(record.reading)), record)
    parse = partial(parse_record, stacks=StackTable(shared), room=leftovers.room)
    whole = (leftovers.parsed(line, parse) for line in readings.end())
    records = in_order([*(one for one in whole if one is not None), *stacks.end()])
    return Recording(
        session, records, tuple(events), tuple(leftovers.unknown), leftovers.skipped, cost.before(), recent=True
    )


class _Costs:
    """What probe calls that are not remembered have cost, before the moment and before the end."""

    def __init__(self, until: float | None) -> None:
        self._until = until
        self._early, self._all = Cost(), Cost()

    def add(self, line: bytes) -> None:
        if b'"ProbeCall"' not in line and b'"probe_call"' not in line:
            return
        record = quick_record(line)
        if record is not None and isinstance(record.reading, r.ProbeCall):
            self._all = self._all.plus(record.reading)
            if self._until is not None and record.at <= self._until:
                self._early = self._early.plus(record.reading)

    def before(self) -> tuple[tuple[float, Cost], ...]:
        """Costs to add to those of the records, each from a moment on."""
        if self._until is None:
            return ((0.0, self._all),)
        return ((0.0, self._early), (self._until + 1e-6, self._all))


class _Done:
    """How much is read of all files together."""

    def __init__(self, progress: Progress, files: Sequence[Path]) -> None:
        self._progress, self._bytes, self._lines = progress, 0, 0
        self._total = sum(map(_size, files))

    def lines(self, file: Path, leftovers: Leftovers) -> Iterator[bytes]:
        """The lines of a file, but for those that are too long; of one that cannot be read none."""
        try:
            for line in session_lines(file, leftovers.room):
                self._bytes += len(line)
                self._lines += 1
                if self._lines % REPORT_LINES == 0:
                    self._progress(min(self._bytes, self._total), self._total)
                if len(line) >= LONGEST_LINE_BYTES:
                    leftovers.skipped += 1
                else:
                    yield line
        except PermissionError:
            raise
        except OSError:
            pass


def _size(file: Path) -> int:
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as content:
            return plain_size(content)
    except OSError:
        return 0


def lines_bytes(path: Path) -> int:
    """The size of a session's readings and stacks, before compression."""
    return sum(
        _size(file)
        for stream in (READINGS, STACKS)
        for file in islice(path.glob(f"{stream}*.jsonl"), bounds.MOST_FILES)
    )
