"""The readings up to one moment, indexed, and the arithmetic on them that more than one rule needs.

Counters in the recording are cumulative; differences and rates are taken here and nowhere else.
"""

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import wraps
from itertools import combinations, pairwise
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import msgspec

from perfwatch.recording.recording import Cost, Record
from perfwatch.triage.words.frames import Program
from perfwatch_probes import readings as r

NOTHING = Cost()
R = TypeVar("R", bound=r.Reading)
T = TypeVar("T")
P = ParamSpec("P")
A = TypeVar("A")

# What tells two entities of one kind of reading apart.
KEYS: dict[type[r.Reading], tuple[str, ...]] = {
    r.Process: ("pid",),
    r.ProcessEnded: ("pid",),
    r.ProcessUsage: ("pid",),
    r.Software: ("pid",),
    r.Thread: ("pid", "tid"),
    r.Descriptor: ("pid", "fd"),
    r.FileGrowth: ("pid", "fd"),
    r.Stack: ("pid", "tid"),
    r.StackFailure: ("pid",),
    r.SourceLine: ("file", "line"),
    r.NativeProfile: ("pid", "tid"),
    r.Steps: ("pid",),
    r.Traceback: ("pid",),
    r.ThreadError: ("pid", "tid"),
    r.Cgroup: ("path",),
    r.Affinity: ("pid",),
    r.Disk: ("device",),
    r.Network: ("interface",),
    r.Traffic: ("pid",),
    r.Gpu: ("uuid",),
    r.GpuSample: ("uuid",),
    r.GpuActivity: ("uuid",),
    r.GpuErrors: ("uuid",),
    r.GpuEvent: ("uuid",),
    r.GpuProcess: ("uuid", "pid"),
    r.GpuBinding: ("pid",),
    r.GpuSilence: ("call",),
    r.Communicator: ("communicator",),
    r.RecordedGroup: ("pid", "group"),
    r.ProbeCall: ("probe", "entity"),
    r.CaptureWindow: ("kind",),
    r.TorchTrace: ("pid",),
    r.FailureLine: ("file", "line"),
    r.LogSpan: ("file", "attempt"),
    r.SavedCheckpoint: ("file",),
}


class Seen(msgspec.Struct, Generic[R], frozen=True):
    """A reading and when it was made (seconds since the session began)."""

    at: float
    reading: R


def _no_key(_: r.Reading) -> tuple[Any, ...]:
    return ()


def _key_of(names: tuple[str, ...]) -> Callable[[r.Reading], tuple[Any, ...]]:
    """What reads these fields as a tuple: it is called for every reading."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda reading: (get(reading),)


_KEY_OF = {kind: _key_of(names) for kind, names in KEYS.items() if names}


def key_of(reading: r.Reading) -> tuple[Any, ...]:
    """What tells two entities of one kind of reading apart."""
    return _KEY_OF.get(type(reading), _no_key)(reading)


def _when(seen: Seen[Any]) -> float:
    return seen.at


class History:
    """Everything that was read up to ``at``: filled at once from a recording, or line by line while a job is watched."""

    def __init__(self, records: Iterable[Record] = (), at: float = 0.0, spent: Cost = NOTHING) -> None:
        self.at = at
        self._added: Counter[type[r.Reading]] = Counter()
        self._newest: dict[type[r.Reading], float] = {}
        self._count = 0
        self.spent = spent  # by the probes since the session began; a watch of days forgets the single calls
        self._program = Program()
        self._kept: tuple[tuple[float, int], dict[Hashable, Any]] = ((at, 0), {})
        self._index: dict[type[r.Reading], dict[tuple[Any, ...], list[Seen[Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        # Keys by what they begin with, in the order in which they came; the values mean nothing.
        self._of: dict[type[r.Reading], dict[Any, dict[tuple[Any, ...], None]]] = defaultdict(lambda: defaultdict(dict))
        for record in records:
            if record.at <= at and record.known_at <= at:
                self.add(record.at, record.reading)

    def add(self, at: float, reading: r.Reading) -> None:
        """Put one reading in its place; a stack record tells of the past, so order is by time, not by arrival."""
        kind = type(reading)
        if kind is r.Stack or kind is r.SourceLine:
            if isinstance(reading, r.Stack) and self._program.learns(reading, self._has_torch):
                self._mark()
            if self._program.marks:
                reading = self._program.marked(reading)
        if isinstance(reading, r.Gpu) and not reading.stand_in and reading.number in self._of[kind]:
            del self._index[kind][(reading.number,)]
            self._forget_key(kind, (reading.number,))
        self._added[kind] += 1
        self._newest[kind] = max(at, self._newest.get(kind, at))
        self._count += 1
        if kind is r.ProbeCall:
            self.spent = self.spent.plus(reading)  # type: ignore[arg-type]
        key = _KEY_OF.get(kind, _no_key)(reading)
        series = self._index[kind][key]
        if not series and key:
            self._of[kind][key[0]][key] = None
        seen = Seen(at, reading)
        if series and series[-1].at > at:
            bisect.insort(series, seen, key=_when)
        else:
            series.append(seen)

    def _mark(self) -> None:
        """Mark anew what was read before it was known which packages are the program."""
        for kind in (r.Stack, r.SourceLine):
            found = [(key, seen) for key, series in self._index.pop(kind, {}).items() for seen in series]
            for _, seen in found:
                reading = self._program.marked(seen.reading)
                self._index[kind][_KEY_OF[kind](reading)].append(Seen(seen.at, reading))
            self._of[kind].clear()
            for key in self._index[kind]:
                self._of[kind][key[0]][key] = None

    def _has_torch(self, pid: int) -> bool:
        process = self.latest(r.Process, pid)
        return process is not None and process.reading.torch_loaded is True

    def added(self, *kinds: type[r.Reading]) -> int:
        """How many readings of these kinds were ever added: unchanged means that nothing is new."""
        return sum(self._added[kind] for kind in kinds)

    def newest(self, kind: type[r.Reading]) -> float | None:
        """When anything of this kind was last read."""
        return self._newest.get(kind)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives: asked for again, the same, until a reading is added or time goes on."""
        stamp = (self.at, self._count)
        if self._kept[0] != stamp:
            self._kept = (stamp, {})
        known = self._kept[1]
        if key not in known:
            known[key] = make()
        return cast("T", known[key])

    def forget(self, before: float) -> None:
        """Drop what is older, but keep each entity's last reading: written on change means that it still holds."""
        for by_key in self._index.values():
            for series in by_key.values():
                keep = min(bisect.bisect_left(series, before, key=_when), len(series) - 1)
                del series[:keep]
        self._kept = ((self.at, -1), {})

    def drop(self, gone: Callable[[type[r.Reading], tuple[Any, ...], float], bool]) -> None:
        """Drop the entities for which this holds; it is given kind, key and when the entity was last seen."""
        for kind, by_key in self._index.items():
            for key in [key for key, series in by_key.items() if series and gone(kind, key, series[-1].at)]:
                del by_key[key]
                self._forget_key(kind, key)
        self._kept = ((self.at, -1), {})

    def _forget_key(self, kind: type[r.Reading], key: tuple[Any, ...]) -> None:
        """Take an entity out of ``of``; of a first part that has none left nothing stays."""
        if not key:
            return
        alike = self._of[kind][key[0]]
        del alike[key]
        if not alike:
            del self._of[kind][key[0]]

    def entities(self, kind: type[R]) -> list[tuple[Any, ...]]:
        """Keys of all entities for which a reading of this kind exists."""
        return list(self._index[kind])

    def of(self, kind: type[R], first: Any) -> list[tuple[Any, ...]]:
        """Those keys that begin with this (a pid, mostly): looking for them among all would take as long as the job is large."""
        return list(self._of[kind].get(first, ()))

    def series(self, kind: type[R], *key: Any, seconds: float | None = None) -> list[Seen[R]]:
        """All readings of one entity, oldest first; with ``seconds``, only those of the last so many."""
        seen = cast("list[Seen[R]]", self._index[kind].get(key, []))
        if seconds is None:
            return seen
        return seen[bisect.bisect_left(seen, self.at - seconds, key=_when) :]

    def latest(self, kind: type[R], *key: Any) -> Seen[R] | None:
        """The newest reading of one entity, or None."""
        seen = self._index[kind].get(key)
        return cast("Seen[R]", seen[-1]) if seen else None

    def every(self, kind: type[R], seconds: float | None = None) -> list[Seen[R]]:
        """All readings of a kind, by time; with ``seconds``, only those of the last so many."""
        flat = [one for key in self._index[kind] for one in self.series(kind, *key, seconds=seconds)]
        return sorted(flat, key=_when)

    def growth(
        self, kind: type[R], *key: Any, of: Callable[[R], float | None], seconds: float | None = None
    ) -> tuple[float, float] | None:
        """How much a cumulative counter grew, and over how many seconds; None with fewer than two readings.

        A counter that went down (a new process under an old pid, a wrapped counter) gives None, not a negative number.
        """
        values = [
            (one.at, value)
            for one in self.series(kind, *key, seconds=seconds)
            if (value := of(one.reading)) is not None
        ]
        if len(values) < 2:
            return None
        (first_at, first), (last_at, last) = values[0], values[-1]
        if last < first or last_at <= first_at:
            return None
        return last - first, last_at - first_at

    def span(self, kind: type[R], *key: Any) -> float | None:
        """Seconds between the first and the last reading of one entity, or None where there is none."""
        seen = self.series(kind, *key)
        return seen[-1].at - seen[0].at if seen else None

    def rate(
        self, kind: type[R], *key: Any, of: Callable[[R], float | None], seconds: float | None = None
    ) -> float | None:
        """``growth`` per second, or None."""
        grown = self.growth(kind, *key, of=of, seconds=seconds)
        return None if grown is None else grown[0] / grown[1]


def once(answer: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[A, P], T]:
    """A question about a history, or a case with one, answered once until a reading is added; of threads and members the pid counts."""

    @wraps(answer)
    def asked(about: A, /, *of: P.args, **named: P.kwargs) -> T:
        history = cast("History", getattr(about, "history", about))
        key = (answer.__module__, answer.__name__, *map(_named, of), *named.values())
        return history.once(key, lambda: answer(about, *of, **named))

    return asked


def _named(one: Any) -> Hashable:
    pid = getattr(one, "pid", None)
    return one if pid is None else (pid, getattr(one, "tid", None))


def median(values: Iterable[float]) -> float | None:
    """The middle value (mean of the two middle ones), or None for nothing."""
    return quantile(values, 0.5)


def quantile(values: Iterable[float], share: float) -> float | None:
    """The value below which ``share`` of the values lie, linearly interpolated; None for nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# Whether a series grows: of so many parts, three values at least. By chance four are in order once in 24 times.
PARTS, FEWEST = 4, 3
# Of the pairs of values so many have the larger one later; of the growth so much lies between two neighbours at most.
IN_ORDER, AT_ONCE = 0.85, 0.7


def grows(values: Sequence[float], least: float) -> bool:
    """True if values, oldest first, grow by at least so much in all, nearly always, and not at one moment."""
    grown = values[-1] - values[0] if len(values) >= FEWEST else 0.0
    if grown <= 0.0 or grown < least:
        return False
    ordered = [later > earlier for earlier, later in combinations(values, 2)]
    jump = max(later - earlier for earlier, later in pairwise(values))
    return sum(ordered) >= IN_ORDER * len(ordered) and jump <= AT_ONCE * grown


# Which readings are of the wait that a thread is in now: an older one tells of where it was. A program that goes from one wait to the
# next may meanwhile hold the descriptor's number with another file behind it, or stand in another line; joined, they make a story that
# never was.

LASTING_SECONDS = 0.9  # a shorter nap is part of a loop, whose other stacks tell of the same wait
LATE_SECONDS = 0.3  # a record of stacks is stamped so late at most (measured: 0.1 s on two crowded cores)


@once
def since(history: History, pid: int, tid: int) -> float | None:
    """When a thread came to the wait that it was last seen in; None where it was seen in no other, or none that lasts."""
    looks = history.series(r.Thread, pid, tid)
    if not looks or looks[-1].reading.wait is None or not _lasts(looks[-1].reading):
        return None
    wait = _kind(looks[-1].reading)
    came_at = last_ran_at(looks[-1])
    # While it has not run it can have been in no other wait: of a long one the looks need not be gone through.
    before = bisect.bisect_left(looks, came_at, key=lambda look: look.at)
    for look in reversed(looks[:before]):
        if look.reading.state == "R" or look.reading.wait is None:
            continue
        if _kind(look.reading) != wait:
            return came_at
        came_at = last_ran_at(look)
    return None


def _lasts(thread: r.Thread) -> bool:
    """True if the wait is one to stay in, and not a nap or a timed look of a loop."""
    wait = thread.wait
    if wait is None or thread.state == "R" or thread.ran_ago_seconds is None:
        return False
    return wait.forever or thread.ran_ago_seconds + (wait.remaining_seconds or 0.0) >= LASTING_SECONDS


def _kind(thread: r.Thread) -> tuple[object, ...]:
    """What two looks at one wait have in common; not the address, which a lock has anew each time."""
    wait = thread.wait
    return () if wait is None else (wait.kind, wait.fd, wait.polled, wait.path, wait.child_pid, wait.forever)


def last_ran_at(look: Seen[r.Thread]) -> float:
    """When a thread last ran before a look at it."""
    return look.at - (look.reading.ran_ago_seconds or 0.0)


def is_past(history: History, seen: Seen[r.Stack]) -> bool:
    """True if a stack is of an earlier wait than the one that the thread is in."""
    came_at = since(history, seen.reading.pid, seen.reading.tid)
    if came_at is None or seen.at - seen.reading.span_seconds >= came_at:
        return False
    return seen.at < came_at + LATE_SECONDS


def open_file(history: History, pid: int, tid: int, fd: int) -> Seen[r.Descriptor] | None:
    """What is behind a descriptor that a thread waits on; None where that was read before it came to this wait."""
    seen = history.latest(r.Descriptor, pid, fd)
    if seen is None:
        return None
    came_at = since(history, pid, tid)
    if came_at is not None and seen.at < came_at:
        return None
    return None if _outlived(history, tid, seen) else seen


def _outlived(history: History, tid: int, seen: Seen[r.Descriptor]) -> bool:
    """True if one that held it has ended since, and the thread went on: what it waits on now may be another's."""
    look = history.latest(r.Thread, seen.reading.pid, tid)
    if look is None or look.reading.state == "R" or last_ran_at(look) <= seen.at:
        return False
    ends = (history.latest(r.ProcessEnded, pid) for pid in {*seen.reading.readers, *seen.reading.writers})
    return any(end is not None and end.at >= seen.at for end in ends)
