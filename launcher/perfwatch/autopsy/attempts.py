"""Files of several attempts of one job, told apart: an elastic restart, a requeued Slurm job, a pod that was started again.

A place is a folder that was given, a folder below the only one that was given, a recorded session, or a log with the number of a
job or an attempt in its name. Places whose times overlap are one attempt (the hosts of one job). A place that spans several others
is the log of a launcher, a scheduler or a kernel: its lines belong to the attempt of their time. Within a place torchrun numbers its
folders, and a launcher's log says where it started the ranks again.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from perfwatch.autopsy.kinds import SESSION
from perfwatch.autopsy.reading import Contents
from perfwatch_probes import readings as r

_SERIES = re.compile(r"(?i)(?:slurm|attempt|requeue|restart|retry|try|job)[-_.]?\d+|previous")
_RANKS = re.compile(r"(?i)^(?:rank|worker|node|host|local|proc|task|gpu)?[-_.]?\d{1,4}$")

Named = tuple[str, Contents]  # a file as it is shown, and what it says


@dataclass
class Attempt:
    """What one attempt left. began, ended: unix time, where its files tell it; number: torchrun's, or a launcher's."""

    contents: list[Named] = field(default_factory=list)
    began: float | None = None
    ended: float | None = None
    number: int | None = None

    @property
    def ranks(self) -> set[int]:
        """Whose files these are."""
        return {one.rank for _, one in self.contents if one.rank is not None}

    def widen(self, began: float | None, ended: float | None) -> None:
        """Take in a time."""
        self.began = min((one for one in (self.began, began) if one is not None), default=None)
        self.ended = max((one for one in (self.ended, ended) if one is not None), default=None)

    def take(self, other: "Attempt") -> None:
        """Join the files of another place."""
        self.contents += other.contents
        self.widen(other.began, other.ended)

    @property
    def seconds(self) -> float:
        """How long it lasted, as far as is known."""
        return 0.0 if self.began is None or self.ended is None else self.ended - self.began


def place_of(path: str, arguments: Sequence[str]) -> str:
    """The place of a file, by the paths that were given (absolute): empty for one that may be of any attempt."""
    above = [one for one in arguments if path == one or path.startswith(one.rstrip("/") + "/")]
    argument = max(above, key=len, default="")
    below = os.path.relpath(path, argument) if argument != path else ""
    if len(arguments) > 1 and below:
        return argument
    folder = below.partition("/")[0] if "/" in below else ""
    if folder and not _RANKS.match(folder) and not folder.startswith("attempt_"):
        return f"{argument}/{folder}"
    return path if _SERIES.search(os.path.basename(path)) and not folder else ""


def attempts(contents: Sequence[tuple[str, str, Contents]]) -> list[Attempt]:
    """The attempts, the oldest first; of one attempt, one.

    Args:
        contents: place, name and content of each file.
    """
    places: dict[str, Attempt] = {}
    for place, name, one in contents:
        where = f"session {name}" if one.kind == SESSION else place
        unit = places.setdefault(where, Attempt())
        unit.contents.append((name, one))
        for began, ended in _times(one):
            unit.widen(began, ended)
    anywhere = places.pop("", Attempt())
    found: list[Attempt] = []
    spanning = [anywhere]
    for unit in sorted(places.values(), key=lambda one: (one.seconds <= 0.0, one.seconds)):
        beside = [one for one in found if _overlap(one, unit)]
        if len(beside) > 1 or unit.began is None or unit.ended is None or unit.seconds <= 0.0:
            spanning.append(unit)
        elif beside or any(one.ranks and unit.ranks and not one.ranks & unit.ranks for one in found):
            (beside or found)[-1].take(unit)
        else:
            found.append(unit)
    found.sort(key=lambda one: one.began or 0.0)
    if not found:
        found = [Attempt()]
    for unit in spanning:
        _distribute(unit, found)
    return [part for one in found for part in _numbered(one)]


def _times(one: Contents) -> Iterable[tuple[float | None, float | None]]:
    if one.event is not None:
        yield one.event.facts["began"], one.event.facts["ended"]
    for reading in one.readings:
        if isinstance(reading, r.LogSpan):
            yield reading.began, reading.ended


def _overlap(one: Attempt, other: Attempt) -> bool:
    known = None not in (one.began, one.ended, other.began, other.ended)
    return known and one.began <= other.ended and other.began <= one.ended  # type: ignore[operator]


def _distribute(unit: Attempt, found: list[Attempt]) -> None:
    """Give each line to the attempt of its time, and everything else to the one that was the newest when it was written."""
    if len(found) == 1:
        found[0].take(unit)
        return
    for name, one in unit.contents:
        parts: dict[int, list[r.ANY_READING]] = {}
        for reading in one.readings:
            at = reading.logged_at if isinstance(reading, r.FailureLine) else _written(reading, one)
            parts.setdefault(_index(at, found), []).append(reading)
        for index, readings in parts.items() if one.readings else ((len(found) - 1, []),):
            found[index].contents.append((name, msgspec.structs.replace(one, readings=tuple(readings))))


def _written(reading: r.ANY_READING, one: Contents) -> float | None:
    return reading.written if isinstance(reading, r.SavedCheckpoint) else one.newest or one.modified or None


def _index(at: float | None, found: list[Attempt]) -> int:
    """The attempt of a moment: the first that had not ended long before it."""
    if at is None:
        return len(found) - 1
    for index, one in enumerate(found[:-1]):
        begins = found[index + 1].began
        if (begins is not None and at < begins) or (one.ended is not None and at <= one.ended):
            return index
    return len(found) - 1


def _numbered(whole: Attempt) -> list[Attempt]:
    """The attempts that torchrun's folders or a launcher's log number; what bears no number is of the time at which it was written."""
    numbers = {
        number for _, one in whole.contents for reading in one.readings if (number := _number(reading)) is not None
    }
    if len(numbers) < 2:
        return [whole]
    found = {number: Attempt(number=number) for number in sorted(numbers)}
    rest = Attempt()
    for name, one in whole.contents:
        parts: dict[int | None, list[r.ANY_READING]] = {}
        for reading in one.readings:
            parts.setdefault(_number(reading), []).append(reading)
        for number, readings in parts.items():
            part = msgspec.structs.replace(one, readings=tuple(readings))
            if number is None:
                rest.contents.append((name, part))
                continue
            found[number].contents.append((name, part))
            for reading in readings:
                if isinstance(reading, r.LogSpan):
                    found[number].widen(reading.began, reading.ended)
                elif isinstance(reading, r.FailureLine):
                    found[number].widen(reading.logged_at, reading.logged_at)
        if not one.readings:
            rest.contents.append((name, one))
    _distribute(rest, list(found.values()))
    return list(found.values())


def _number(reading: r.ANY_READING) -> int | None:
    return reading.attempt if isinstance(reading, r.FailureLine | r.LogSpan) else None
