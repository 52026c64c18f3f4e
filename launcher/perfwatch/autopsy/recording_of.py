"""All that the files say, as one recording: whose each reading is, and what could not be read. Kept as a session, every command reads it.

Ranks are known by number. Where no file tells the pid of a rank, the recording has a negative number in its place, which no verdict shows.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from perfwatch import __version__
from perfwatch.autopsy.attempts import Attempt, Named, attempts, place_of
from perfwatch.autopsy.files import find_files, named_above
from perfwatch.autopsy.kinds import DUMP, LOG
from perfwatch.autopsy.reading import Contents, read_file
from perfwatch.errors import SessionUnwritable
from perfwatch.postmortem import ATTEMPT, diagnose
from perfwatch.recording.recording import BUDGET_BYTES, Event, Record, Recorder, Recording, redacted
from perfwatch.recording.session import AUTOPSY, Session, choose_directory, this_machine
from perfwatch.recording.writer import Writer
from perfwatch.text import duration
from perfwatch.verdict import Verdict
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import LATEST_CREATED, MOST_RANKS
from perfwatch_probes.deadline import Caller
from perfwatch_probes.probe import Unavailable

LIST_SECONDS = 30.0
FILE_SECONDS = 120.0  # for one file
ALL_SECONDS = 600.0  # for all of them
MOST_READINGS = 500_000
MOST_HOSTS = 1024  # of an attempt that are kept
GRACE_SECONDS = 5.0  # in which a child that has stopped reading answers
BATCH = 100  # readings that are handed to the writer at once
SETTLE_SECONDS = 10.0

_NUMBER = re.compile(r"\d+")
Progress = Callable[[int, int], None]


@dataclass
class Gathered:
    """What was read, file by file, and what was not."""

    contents: list[tuple[str, str, Contents]] = field(default_factory=list)  # place (``attempts``), name, content
    missing: list[tuple[str, str, str]] = field(default_factory=list)  # file, reason, advice

    @property
    def read(self) -> int:
        """Files that said something, if only that nothing ended in them."""
        return sum(1 for *_, one in self.contents if one.readings or one.event or one.kind == LOG)


def gather(
    paths: Sequence[str],
    child: Caller,
    names: Mapping[str, str] = {},
    progress: Progress = lambda done, of: None,
    clock: Callable[[], float] = time.monotonic,
) -> Gathered:
    """Read all files at and below these paths.

    Args:
        paths: of files and folders.
        child: reads them, and may be killed over one.
        names: how a file is to be shown whose path means nothing to the user.
        progress: is told how many files of how many were read.
        clock: CLOCK_MONOTONIC.
    """
    found = Gathered()
    ends = clock() + ALL_SECONDS
    whole = [os.path.abspath(path) for path in paths]
    try:
        listed = child.call(find_files, whole, deadline_seconds=LIST_SECONDS)
    except Unavailable as unavailable:
        found.missing.append((", ".join(paths)[:200], unavailable.reason, unavailable.advice))
        return found
    found.missing += [(path, reason, "") for path, reason in listed.left_out]
    above = common_folder(listed.files)
    readings = 0
    for number, path in enumerate(listed.files):
        progress(number, len(listed.files))
        shown = names.get(path) or path.removeprefix(above)
        left = min(FILE_SECONDS, ends - clock())
        if left <= 0 or readings > MOST_READINGS:
            reason = "too many files" if left > 0 else f"the {duration(ALL_SECONDS)} for all files were used up"
            found.missing.append(
                (shown, f"{reason}: this one and {len(listed.files) - number - 1} more were not read", "")
            )
            break
        try:
            top = named_above(path, whole)
            contents = child.call(read_file, path, top, shown, left, deadline_seconds=left + GRACE_SECONDS)
        except Unavailable as unavailable:
            found.missing.append((shown, unavailable.reason, unavailable.advice))
            continue
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            found.missing.append((shown, (getattr(error, "strerror", None) or str(error))[:200], ""))
            continue
        readings += len(contents.readings)
        found.contents.append((place_of(path, whole), shown, contents))
        if contents.reason:
            found.missing.append((shown, contents.reason, contents.advice))
    _leave_out_other_jobs(found)
    return found


def _leave_out_other_jobs(found: Gathered) -> None:
    """Of recorded sessions only those of the job of the newest: the same command, numbers apart, or the same id of a scheduler."""
    sessions = [(name, one.event.facts) for _, name, one in found.contents if one.event is not None]
    newest = max((facts for _, facts in sessions), key=lambda facts: facts["ended"], default=None)
    others = {name for name, facts in sessions if newest is not None and not _same_job(facts, newest)}
    found.contents = [one for one in found.contents if one[1] not in others]
    found.missing += [(name, "a session of another job: it was left out", "give it alone") for name in sorted(others)]


def _same_job(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return (one["job"] == other["job"] != "") or _NUMBER.sub("#", str(one["command"])) == _NUMBER.sub(
        "#", str(other["command"])
    )


def common_folder(files: Sequence[str]) -> str:
    """What all paths have in front, to be left out of what is shown."""
    if not files:
        return ""
    folder = os.path.commonpath([os.path.dirname(one) for one in files])
    return folder.rstrip("/") + "/"


def recording_of(gathered: Gathered, command: Sequence[str], now: float) -> Recording:
    """The recording of the last attempt: every reading at its beginning, which is the newest moment that the files tell.

    Earlier attempts are judged by themselves, and their verdicts are its events.

    Args:
        gathered: the files.
        command: what was typed.
        now: unix time, where no file tells any.
    """
    *before, last = attempts(gathered.contents)
    events = tuple(_told(one, command, now) for one in before)
    if before:
        events += (Event(0.0, ATTEMPT, "the last attempt", None, _facts(last)),)
    return _recording(last.contents, gathered.missing, events, command, now)


def _told(one: Attempt, command: Sequence[str], now: float) -> Event:
    """An earlier attempt and the verdict on it."""
    verdict = diagnose(_recording(one.contents, [], (), command, now))
    return Event(0.0, ATTEMPT, verdict.summary, verdict, _facts(one))


def _facts(one: Attempt) -> dict[str, object]:
    """Of an attempt when it was, how far it came, where it ran."""
    every = [reading for _, contents in one.contents for reading in contents.readings]
    spans = [reading for reading in every if isinstance(reading, r.LogSpan)]
    saved = [reading for reading in every if isinstance(reading, r.SavedCheckpoint)]
    sessions = [contents.event.facts for _, contents in one.contents if contents.event is not None]
    hosts = [reading.host for reading in every if isinstance(reading, r.FailureLine)] + [it["host"] for it in sessions]

    def newest(values: Iterable[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return {
        "began": one.began,
        "ended": one.ended,
        "number": one.number,
        "hosts": sorted({host for host in hosts if host})[:MOST_HOSTS],
        "ranks": len(one.ranks),
        "first_step": min((it.first_step for it in spans if it.first_step is not None), default=None),
        "last_step": newest([*(it.last_step for it in spans), *(it["last_step"] for it in sessions)]),
        "resumed_step": newest(it.resumed_step for it in spans),
        "saved_step": newest([*(it.saved_step for it in spans), *(it.step for it in saved)]),
        "saved_files": len(saved),
    }


def _recording(
    named: Sequence[Named],
    unread: Iterable[tuple[str, str, str]],
    events: tuple[Event, ...],
    command: Sequence[str],
    now: float,
) -> Recording:
    """What the files of one attempt say."""
    numbers = _Numbers(named)
    readings: list[r.Reading] = [*numbers.processes()]
    seen: dict[tuple[int, str], tuple[float, str]] = {}
    missing = list(unread)
    for name, contents in named:
        for reading in contents.readings:
            if isinstance(reading, r.RecordedGroup):
                place = (reading.rank, reading.group)
                older = seen.get(place)
                if older is not None and older[0] >= contents.modified:
                    missing.append((name, f"rank {reading.rank} has a newer dump: {older[1]}", ""))
                    break
                seen[place] = (contents.modified, name)
            readings.append(numbers.of(reading, contents))
    readings += [
        r.ProbeCall(
            probe=name[-120:], entity=name, duration_seconds=0.0, outcome="unavailable", reason=reason, advice=advice
        )
        for name, reason, advice in missing
    ]
    created = _newest(named, now)
    counts: dict[str, int] = {}
    for _, contents in named:
        counts[contents.kind] = counts.get(contents.kind, 0) + 1
    session = Session(
        version=__version__,
        created=created,
        mode=AUTOPSY,
        machine=this_machine(),
        command=tuple(command),
        conditions={
            "world_size": numbers.world_size,
            "files": sum(counts.values()),
            **{f"files: {kind}": count for kind, count in sorted(counts.items())},
            "log_lines": sum(contents.lines for _, contents in named),
        },
    )
    records = tuple(Record(0.0, redacted(reading)) for reading in readings)  # type: ignore[arg-type]
    told = tuple(contents.event for _, contents in named if contents.event is not None)
    return Recording(session, records, (*told, *events))


def _newest(named: Sequence[Named], now: float) -> float:
    """The newest moment of which a log or a session tells, or else at which a dump was written."""
    told = [one.newest for _, one in named if one.newest is not None]
    told += [one.event.facts["ended"] for _, one in named if one.event is not None]
    written = [one.modified for _, one in named if one.kind == DUMP]
    moment = max(told or written, default=now)
    return moment if 0.0 <= moment < LATEST_CREATED else now


class _Numbers:
    """Who is which rank, by what all files say together."""

    def __init__(self, named: Sequence[Named]) -> None:
        self._pids: dict[int, int] = {}
        ranks: set[int] = set()
        members: set[int] = set()
        for _, contents in named:
            if contents.rank is not None and contents.readings:
                ranks.add(contents.rank)
            for one in contents.readings:
                if isinstance(one, r.RecordedGroup):
                    members.update(one.members)
                elif isinstance(one, r.Stack) and contents.rank is not None:
                    self._pids.setdefault(contents.rank, one.pid)
                elif isinstance(one, r.FailureLine) and one.rank is not None:
                    ranks.add(one.rank)
                    if one.pid is not None and not one.host:
                        self._pids.setdefault(one.rank, one.pid)
        self._ranks = sorted(ranks)
        top = max((*members, *ranks), default=-1)
        self.world_size: int | None = max(len(members), top + 1) if members and top < MOST_RANKS else None
        taken: set[int] = set()
        for rank in sorted(self._pids):  # on two hosts two ranks can have one number
            if self._pids[rank] in taken:
                del self._pids[rank]
            else:
                taken.add(self._pids[rank])

    def pid(self, rank: int) -> int:
        """Its process, or the number in its place."""
        return self._pids.get(rank) or -1 - rank

    def processes(self) -> Iterable[r.Process]:
        """One for each rank of which a file tells."""
        for rank in self._ranks:
            yield r.Process(
                pid=self.pid(rank),
                start_ticks=0,
                parent_pid=0,
                name="python",
                command=("python",),
                python=True,
                torch_loaded=True,
                rank=rank,
                world_size=self.world_size,
            )

    def of(self, reading: r.Reading, contents: Contents) -> r.Reading:
        """The same reading with the process of its rank."""
        if isinstance(reading, r.RecordedGroup):
            return msgspec.structs.replace(reading, pid=self.pid(reading.rank))
        if isinstance(reading, r.TorchTrace) and contents.rank is not None:
            return msgspec.structs.replace(reading, pid=self.pid(contents.rank))
        if isinstance(reading, r.Stack) and contents.rank is not None:
            main = reading.tid == reading.pid
            pid = self.pid(contents.rank)
            return msgspec.structs.replace(reading, pid=pid, tid=pid if main else reading.tid)
        return reading


def keep(
    recording: Recording, verdict: Verdict, explicit: Path | None, environ: Mapping[str, str], child: Caller, now: float
) -> tuple[Path | None, str]:
    """Write the session; returns where it lies, and what was not recorded and why, empty when all was.

    Args:
        recording: what was judged.
        verdict: as it was given.
        explicit: where the user wants it; the first local disk by default.
        environ: where the default places are looked up.
        child: looks at disks.
        now: unix time, for the name.
    """
    try:
        folder = choose_directory(explicit, environ, child, created=now, pid=os.getpid())
        writer = Writer(folder, BUDGET_BYTES)
    except SessionUnwritable as error:
        return None, f"nothing was recorded: {error.message}"
    except OSError as error:
        return None, f"nothing was recorded: the writing process cannot be started: {error.strerror}"
    recorder = Recorder(folder, recording.session, BUDGET_BYTES, writer)
    readings = (record.reading for record in recording.records)
    while batch := list(islice(readings, BATCH)):
        recorder.append(0.0, batch)
        if not writer.settle(SETTLE_SECONDS):
            break
    for event in recording.events:
        recorder.event(event.at, event.kind, event.text, event.verdict, event.facts)
    recorder.event(0.0, "verdict", verdict.summary, verdict)
    return folder, recorder.close(SETTLE_SECONDS)
