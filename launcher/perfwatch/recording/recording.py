"""The recording: what was read, what was said, and when. Everything after it is a pure function of it.

``load`` turns a session folder into a frozen ``Recording``. ``Recorder`` makes the folder while a job is watched,
through a process that may block (``perfwatch.recording.writer``).
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.recording.damage import DAMAGED, Implausible, check_numbers
from perfwatch.recording.redaction import redact_tree
from perfwatch.recording.segments import EVENTS, READINGS, STACKS
from perfwatch.recording.session import LONGEST_SESSION_BYTES, SCHEMA, Session
from perfwatch.recording.session_lines import LONGEST_LINE_BYTES, Room, session_lines
from perfwatch.recording.stack_tables import DEFINITION, SharedStacks, StackTable
from perfwatch.recording.writer import STALLED_SECONDS, Writer
from perfwatch.verdict import Verdict
from perfwatch_probes import bounds
from perfwatch_probes import readings as r

T = TypeVar("T")

BUDGET_BYTES = 256 * 2**20
AT_DECIMALS = 4  # 0.1 ms: finer than any probe, and it keeps lines short

# Text in these readings comes from the job's command lines, files and logs: it may hold secrets.
_OUTSPOKEN = (
    r.Process
    | r.Descriptor
    | r.FileGrowth
    | r.SourceLine
    | r.Traceback
    | r.ThreadError
    | r.KernelMessage
    | r.FailureLine
    | r.LogSpan
    | r.SavedCheckpoint
)
_STACK_READINGS = r.Stack | r.StackFailure | r.NativeProfile


# The kind of the event between whose time and that of the next ``capture`` one is at work.
CAPTURE_BEGUN = "capture_begun"
# The text of a ``signal`` event: ``run`` passes on a signal that ends most programs, whose number is in ``facts``.
TERMINATES = "asked to terminate"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of ``readings`` or ``stacks``: seconds since the session began, and the reading.

    known_at: when it came to be known, in the same seconds, where that was later (a record of stacks is told when it is over).
    """

    at: float
    reading: r.ANY_READING
    known_at: float = 0.0


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that perfwatch said or that happened to the job as a whole; one line of ``events.jsonl``.

    kind: suspicion, verdict, retraction, signal, outcome, shed, note, capture_begun, capture. Unknown kinds of newer versions
    are kept.
    """

    at: float
    kind: str
    text: str
    verdict: Verdict | None = None
    facts: dict[str, Any] = {}


@dataclass(frozen=True)
class Cost:
    """What probe calls have cost, in seconds of CPU and of pauses, and how many dumps of stacks they were."""

    cpu_seconds: float = 0.0
    stack_dumps: int = 0
    target_paused_seconds: float = 0.0

    def plus(self, call: r.ProbeCall) -> "Cost":
        """With one more call. What py-spy cost is charged in a line of its own, which is no dump."""
        dump = call.probe.startswith("stack") and call.outcome == "ok" and call.entity != "py-spy"
        return Cost(
            self.cpu_seconds + (call.cpu_seconds or 0.0),
            self.stack_dumps + dump,
            self.target_paused_seconds + call.target_paused_seconds,
        )


@dataclass(frozen=True)
class Recording:
    """A session, in order of time.

    Attributes:
        session: its description.
        records: what was read.
        events: what was said.
        unknown: lines of newer versions, as they are.
        skipped: how many lines are torn.
        costs: what probe calls have cost that are not among the records, each from a moment on.
        recent: True if the records are what a watch remembers, and not all.
    """

    session: Session
    records: tuple[Record, ...] = ()
    events: tuple[Event, ...] = ()
    unknown: tuple[bytes, ...] = ()
    skipped: int = 0
    costs: tuple[tuple[float, Cost], ...] = ()
    recent: bool = False

    def until(self, at: float) -> "Recording":
        """What was known ``at`` seconds after the session began."""
        return replace(
            self,
            records=tuple(
                record
                for record in self.records[: bisect.bisect_right(self.records, at, key=lambda record: record.at)]
                if record.known_at <= at
            ),
            events=tuple(event for event in self.events if event.at <= at),
        )

    def cost(self, at: float) -> Cost:
        """What probe calls up to a moment have cost that are not among the records."""
        return next((cost for since, cost in reversed(self.costs) if since <= at), Cost())

    @property
    def left_out(self) -> str:
        """How many lines could not be read, in words; empty if none."""
        kinds = ((self.skipped, "damaged {}"), (len(self.unknown), "{} of a newer version"))
        lines = [(count, kind.format("line" if count == 1 else "lines")) for count, kind in kinds if count]
        return " and ".join(f"{count} {kind}" for count, kind in lines)

    @cached_property
    def end(self) -> float:
        """When the last line was written, in seconds since the session began; 0.0 for an empty recording."""
        known = max((record.known_at for record in self.records), default=0.0)
        return max(known, *(entries[-1].at for entries in (self.records, self.events) if entries), 0.0)


def load(path: Path) -> Recording:
    """Read a session folder, from any machine and version: also while it is being written, or torn by a crash.

    Raises:
        SessionUnreadable: no session there, or one of a newer major version.
        PermissionError: a file of it may not be read; the others alone could tell something else.
    """
    session = load_session(path)
    leftovers = Leftovers(Room(path))
    records: list[Record] = []
    shared = SharedStacks()
    for stream in (READINGS, STACKS):
        for file in sorted(islice(path.glob(f"{stream}*.jsonl"), bounds.MOST_FILES)):
            records += leftovers.decoded(file, partial(parse_record, stacks=StackTable(shared), room=leftovers.room))
    events = leftovers.decoded(path / "events.jsonl", parse_event)
    return Recording(
        session,
        in_order(records),
        tuple(sorted(events, key=lambda event: event.at)),
        tuple(leftovers.unknown),
        leftovers.skipped,
    )


def load_session(path: Path) -> Session:
    """``session.json`` of a folder. Raises as ``load`` does."""
    try:
        line = next(session_lines(path / "session.json", Room(path), LONGEST_SESSION_BYTES), b"")
    except PermissionError:
        raise
    except OSError as error:
        raise SessionUnreadable(
            f"{path} is not a perfwatch session: session.json: {error.strerror}",
            "a session is a folder with session.json in it; without one the newest of this machine is taken",
        ) from None
    try:
        schema = msgspec.json.decode(line, type=_Schema).schema
        name, _, major = schema.partition("/")
        if name == SCHEMA.partition("/")[0] and int(major.partition(".")[0]) > int(SCHEMA.partition("/")[2]):
            raise SessionUnreadable(
                f"{path} was written by a newer perfwatch ({schema}; this one reads {SCHEMA})",
                "read it with the perfwatch that recorded it, or install a newer one the way this one was installed",
            )
        session = msgspec.json.decode(line, type=Session)
        check_numbers(line, nested=True)
        if not 0.0 <= session.created < bounds.LATEST_CREATED:
            raise Implausible(f"it was created at {session.created:g}, which is no time")
        return session
    except (*DAMAGED, ValueError) as error:
        broken = isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError)
        raise SessionUnreadable(
            f"{path}/session.json is damaged: {'it is not valid JSON' if broken else error}",
            f"what was recorded can still be read as text: zcat -f {path}/readings* | less",
        ) from None


class Sink(Protocol):
    """What takes readings and events: a ``Recorder``, or what counts them on their way to one."""

    def append(self, at: float, readings: Sequence[r.Reading], known_at: float = 0.0) -> None: ...  # noqa: D102
    def event(  # noqa: D102
        self, at: float, kind: str, text: str, verdict: Verdict | None = None, facts: dict[str, Any] | None = None
    ) -> None: ...
    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None: ...  # noqa: D102


class Recorder:
    """Writes a session folder while a job is watched. No call blocks or raises, whatever the disk does.

    Args:
        folder: a new private folder, from ``perfwatch.recording.session.choose_directory``.
        session: its description; ``describe`` replaces it when more is known.
        budget_bytes: what the folder may hold; beyond it the oldest unpinned detail is given up, and that is said.
        writer: what stores the lines; tests give one that blocks or fails.
    """

    def __init__(
        self, folder: Path, session: Session, budget_bytes: int = BUDGET_BYTES, writer: Writer | None = None
    ) -> None:
        self.folder = folder
        self.session = session
        self._writer = writer or Writer(folder, budget_bytes)
        self._lost_said = 0
        self._stall_said = False
        self._last_at = 0.0
        self.describe(session)

    def describe(self, session: Session) -> None:
        """Replace ``session.json``: the conditions of the measurement are known only after a while."""
        self.session = session
        self._writer.describe(msgspec.json.encode(redact_tree(msgspec.to_builtins(session))))

    def append(self, at: float, readings: Iterable[r.Reading], known_at: float = 0.0) -> None:
        """Record readings made ``at`` seconds after the session began; known_at: when they came, where that was later."""
        at = self._last_at = round(at, AT_DECIMALS)
        for reading in readings:
            stream = STACKS if isinstance(reading, _STACK_READINGS) else READINGS
            self._writer.put(stream, msgspec.json.encode(self._record(at, redacted(reading), known_at)))
        self._say_what_was_shed(at)
        self._writer.flush()

    def event(
        self, at: float, kind: str, text: str, verdict: Verdict | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        """Record something that was said or that happened to the job as a whole."""
        at = self._last_at = round(at, AT_DECIMALS)
        event = Event(at, kind, text, verdict, facts or {})
        self._writer.put(EVENTS, msgspec.json.encode(redact_tree(msgspec.to_builtins(event))))
        self._writer.flush()

    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None:
        """Protect what was recorded in this time (seconds since the session began): a verdict rests on it.

        incident: and the half hour before it, which tells how it came to that.
        """
        self._writer.pin(first_at, last_at, incident)

    @property
    def lost(self) -> int:
        """Lines that were not stored so far."""
        return self._writer.lost

    @property
    def loss(self) -> str:
        """What was not stored and why, in a sentence; empty when everything was."""
        lost = self._writer.lost
        if lost:
            return f"{lost} lines of the recording were lost: {self._writer.reason} ({self.folder})"
        if self._writer.stalled_seconds >= STALLED_SECONDS:
            return f"the recording is not being stored: {self._writer.reason} ({self.folder})"
        return ""

    def close(self, deadline_seconds: float = 2.0) -> str:
        """End the recording, waiting no longer than that for the disk, and return ``loss``."""
        self._say_what_was_shed(self._last_at)
        self._writer.close(deadline_seconds)
        return self.loss

    def _record(self, at: float, reading: r.Reading, known_at: float) -> Record:
        # Not ``known_at`` itself: a default is left out of the line only where it is the very object.
        later = (known_at,) if known_at else ()
        return Record(at, reading, *later)  # type: ignore[arg-type]

    def _say_what_was_shed(self, at: float) -> None:
        for text in self._writer.sayings():
            self.event(at, "shed", text)
        lost, stalled = self._writer.lost, self._writer.stalled_seconds >= STALLED_SECONDS
        # Said at the first loss and at every doubling: a full disk must not drown the queue in complaints.
        if lost >= max(1, 2 * self._lost_said) or (stalled and not self._stall_said):
            self._lost_said = lost
            self.event(at, "shed", self.loss, facts={"lost": lost})
        self._stall_said = stalled


class _StoredRecord(msgspec.Struct, frozen=True):
    """A ``Record`` as it is on disk. stack: the number of its frames in the file; None where the reading has them itself."""

    at: float
    reading: r.ANY_READING
    known_at: float = 0.0
    stack: int | None = None


_RECORD = msgspec.json.Decoder(_StoredRecord)
_EVENT = msgspec.json.Decoder(Event)


def parse_record(line: bytes, stacks: StackTable, room: Room) -> Record | None:
    """One line of ``readings`` or ``stacks``; None for one that only defines what later lines of the file name.

    Args:
        line: as it is on disk.
        stacks: those of its file; a definition is added to them.
        room: what the session may still hold.

    Raises what ``DAMAGED`` names, and SessionUnreadable where there is no room left.
    """
    if line.startswith(DEFINITION):
        stacks.define(line)
        return None
    stored = _RECORD.decode(line)
    _check_times(stored.at, stored.known_at)
    check_numbers(line)
    reading = stored.reading
    check_ranks(reading)
    if isinstance(reading, r.Stack):
        if stored.stack is None:
            frames = stacks.whole(reading.frames)
        else:
            frames = stacks.stack(stored.stack)
            room.take_frames(len(frames))
        msgspec.structs.force_setattr(reading, "frames", frames)  # made a moment ago, and known to no one else
    return Record(stored.at, reading, stored.known_at)


def quick_record(line: bytes) -> Record:
    """One line of ``readings``, without a look at its numbers: for one that is kept as a line. Raises what ``DAMAGED`` names."""
    stored = _RECORD.decode(line)
    _check_times(stored.at, stored.known_at)
    return Record(stored.at, stored.reading, stored.known_at)


def parse_event(line: bytes) -> Event:
    """One line of ``events.jsonl``. Raises what ``DAMAGED`` names."""
    event = _EVENT.decode(line)
    _check_times(event.at)
    check_numbers(line, nested=True)
    return event


def check_ranks(reading: r.Reading) -> None:
    """Raise Implausible where a process has a rank, or a world size, that no job has."""
    if isinstance(reading, r.Process):
        numbers = (reading.rank, reading.local_rank, reading.world_size, reading.local_world_size)
        if not all(map(bounds.is_rank, numbers)):
            raise Implausible(f"process {reading.pid} has a rank or a world size beyond {bounds.MOST_RANKS}")


def _check_times(at: float, known_at: float = 0.0) -> None:
    longest = bounds.LONGEST_SESSION_SECONDS
    if not (abs(at) < longest and abs(known_at) < longest):
        raise Implausible(f"at {at:g} s: no session is that long")


def in_order(records: Iterable[Record]) -> tuple[Record, ...]:
    """By time, stacks after the readings of the same moment: the order of the folder, whatever it was live."""
    return tuple(sorted(records, key=lambda record: (record.at, isinstance(record.reading, _STACK_READINGS))))


def redacted(reading: r.Reading) -> r.Reading:
    """The same reading without secrets: what is judged live is then what the disk holds, and no verdict can show more."""
    if isinstance(reading, _OUTSPOKEN) or (isinstance(reading, r.Stack) and reading.texts):
        return msgspec.convert(redact_tree(msgspec.to_builtins(reading)), type(reading))
    return reading


@dataclass
class Leftovers:
    """What could not be read, gathered over the files of a session; and how much more of it may be read."""

    room: Room
    unknown: list[bytes] = field(default_factory=list)
    skipped: int = 0

    def parsed(self, line: bytes, parse: Callable[[bytes], T | None]) -> T | None:
        """What a line says; None for one that says nothing, or that is left out."""
        try:
            return parse(line)
        except msgspec.ValidationError:  # well-formed JSON of a kind that we do not know
            self.unknown.append(line)
        except DAMAGED:
            self.skipped += 1
        return None

    def decoded(self, file: Path, parse: Callable[[bytes], T | None]) -> list[T]:
        """What the lines of one file say; a file that has just been given up, or is none, has none.

        A line with a time, rank or number that no job can have is skipped as a torn one is.

        Raises:
            SessionUnreadable: the session is larger than any that perfwatch writes.
        """
        entries = []
        try:
            for line in session_lines(file, self.room):
                if len(line) >= LONGEST_LINE_BYTES:
                    self.skipped += 1
                elif (entry := self.parsed(line, parse)) is not None:
                    entries.append(entry)
        except PermissionError:
            raise
        except OSError:
            pass
        return entries


class _Schema(msgspec.Struct):
    schema: str
