"""Logs, read from their start to their end in pieces: the lines that tell of an end, who wrote them and when.

Most of a log tells nothing of an end. A piece in which none of a few words occurs is passed over at the speed of a search; the others, the
first and the last ones are read line by line. Memory does not grow with the file.

Before the words of a line may stand the time, the rank, the host, the level: prefixes of torchrun and torch, srun --label, kubectl logs
(--timestamps, --prefix), container runtimes (CRI, Docker's JSON), Python's logging, glog, syslog, dmesg (-T), Ray, NCCL_DEBUG.
"""

import json
import re
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import BinaryIO, NamedTuple

from perfwatch.failures import named
from perfwatch.triage.questions import is_user
from perfwatch_probes.bounds import MOST_RANKS
from perfwatch_probes.readings import FailureLine, Frame

PIECE_BYTES = 1 << 18
LONGEST_TAIL = 1 << 16  # of a line without an end
FIRST, LAST = 150, 150  # ends of one log that are kept; of more those between them are left out
MOST_HINTS = 4
MOST_NAMED = 3000  # lines that are held against the table as they come; of those after them the last ones
MOST_BEYOND = 1000
LAST_BYTES = 1 << 16  # that are read line by line whatever is in them
GOT_OVER_LINES = 20  # of progress after an end: the program went on
MOST_TEXT = 400
MOST_KEPT_APART = 4096  # that are kept apart in one log
SUMMARY_LINES = 14  # of torchrun's last words

# Of a long log, pieces without any of these are passed over: each is a search of the whole log, at 1.2 GB/s.
COARSE = (
    b"rror", b"xception", b"Kill", b"killed", b"ault", b"bort", b"SIG", b"imeout", b"CANCELLED", b"Xid", b"enied", b"NCCL WARN", b" nan",
)  # fmt: skip
# Each end of the table has one of these in its line.
WORDS = (
    b"rror", b"xception", b"Traceback", b'  File "', b"Kill", b"killed", b"ault", b"bort", b"SIG", b"ignal ", b"NaN", b"nan", b" inf",
    b"finite", b"imeout", b"imed out",
    b"TIME", b"REEMPT", b"reempt", b"CANCELLED", b"NODE_FAIL", b"NODE F", b"OUT_OF", b"OOM", b"oom-kill",
    b"oom_", b"Xid", b"ssertion", b"No space", b"enied", b"nterrupt", b"erminated", b"terminate called", b"NCCL WARN",
    b"atchdog", b"Root Cause",    b"ut of memory", b"shared memory", b"llocate", b"llegal", b"aligned", b"itcode", b"it code", b"it Code",
    b"by peer", b"quota",
    b"fallen", b"No module", b"No such", b"shared object", b"undefined symbol", b"no kernel image", b"No CUDA", b"Evicted", b"DeadlineExc",
    b"non-zero", b"GPU is lost", b"in use", b"FAILED", b"SystemExit", b"StopIteration", b"_STATUS_", b"._dynamo", 
    b"Of Memory", b"NVLink", b"compatible",
)  # fmt: skip
_PROGRESS = re.compile(rb"(?i)\b(?:step|iter(?:ation)?|epoch)s?\b[^\n]{0,12}\d|\bit/s\b|\bs/it\b|\bloss\b[^\n]{0,6}\d")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9}), in (?P<function>.{1,200})$')
_TIMED = re.compile(rb"\d\d:\d\d:\d\d")
_TRACEBACK = "Traceback (most recent call last)"
_SUMMARY = re.compile(r"Root Cause \(first observed failure\)")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|traceback)\s*: (.*)$")
_EXIT = re.compile(r"(-?\d{1,9}) \(pid: (\d{1,9})\)")

LONGEST_LINE = 4000
MOST_PREFIXES = 8

_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[@-_]|[\0-\x08\x0b-\x1f\x7f]")
_ISO = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?\]?(?:\s+(?:stdout|stderr) [FP](?=\s))?\s*"
)
_GLOG = re.compile(
    r"\[?[EWIFCV](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s+(?:\d+\s+)?[\w./+-]+:\d+\]\s*(?:\[\w+\]\s*)?"
)
_SYSLOG = re.compile(
    r"([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (?P<host>[\w.-]+) (?:kernel|[\w.-]+\[\d+\]|[\w.-]+):\s*"
)
_DATE = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\]\s*")
_BOOT = re.compile(r"(?:kernel: )?\[ *\d{1,9}\.\d{1,6}\]\s*(?:kernel: )?")
_RANK = re.compile(r"\[(?:rank|Rank |default|RANK )(\d{1,9})\][:]?\s*")
_TRAINER = re.compile(r"\[[A-Za-z_][\w-]*?(\d{1,9})\]:\s?")  # torchrun --tee: [trainer0]:
_LABEL = re.compile(r"(\d{1,7}): ")
_RAY = re.compile(r"\((?:[\w.]+ )?pid=(\d{1,9})(?:, ip=(?P<host>[\w.:-]+))?\)\s*")
_POD = re.compile(r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\]\s*")
_NCCL = re.compile(r"(?P<host>[\w.-]+):(\d{1,9}):\d{1,9} (?=\[\d+\] |NCCL )")
_LEVEL = re.compile(
    r"(?:[-|:]\s+)?(?:[\w.]{1,60}\s+[-|:]\s+)?\[?(?:ERROR|CRITICAL|WARNING|INFO|DEBUG|FATAL)\]?\s*[-|:]\s*(?:[a-z][\w.]*(?::\d+)?\s*[-|:]\s+)?"
)
_IN_TEXT_RANK = re.compile(
    r"\[Rank (\d{1,9})\]|\brank[ :=]+(\d{1,9})\b|\[PG ID \d+ PG GUID [^\]]{0,80}? Rank (\d{1,9})\]", re.IGNORECASE
)
_IN_TEXT_PID = re.compile(
    r"Killed process (\d{1,9})|\bPID[ :=]+(\d{1,9})|\(pid:? ?(\d{1,9})\)|\bpid[=: ]+'?(\d{1,9})|\[(\d{1,9})\]: segfault"
)
_MONTHS = {name: number for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


# One line


class Line(NamedTuple):
    """What is left of a line, and what stood before it."""

    text: str
    at: float | None = None
    rank: int | None = None
    pid: int | None = None
    host: str = ""


def parsed(raw: bytes, year: int, labelled: bool = False) -> Line:
    """A line of a log.

    Args:
        raw: without its end.
        year: of a time stamp that has none.
        labelled: True if ``3: `` at the start is a rank, as srun --label writes it.
    """
    text = raw[:LONGEST_LINE].decode("utf-8", "replace")
    if text.startswith('{"log":'):
        text = _docker(text)
    text = _STEERING.sub("", text).rstrip()
    at: float | None = None
    rank: int | None = None
    pid: int | None = None
    host = ""
    for _ in range(MOST_PREFIXES):
        before = text
        if match := _RANK.match(text) or _TRAINER.match(text) or (_LABEL.match(text) if labelled else None):
            rank = rank if rank is not None else _rank(match[1])
        elif match := _ISO.match(text) or _GLOG.match(text) or _DATE.match(text):
            at = at or _time(match, year)
        elif match := _SYSLOG.match(text):
            at, host = at or _time(match, year), host or match["host"]
        elif match := _RAY.match(text) or _NCCL.match(text):
            groups = match.groupdict()
            host = host or groups.get("host") or ""
            pid = pid or int(next(one for one in match.groups() if one and one.isdigit()))
        elif match := _POD.match(text):
            host = host or match["host"]
        elif match := _BOOT.match(text) or _LEVEL.match(text):
            pass
        else:
            break
        text = text[match.end() :]
        if text == before:
            break
    return Line(text, at, rank, pid, host)


def rank_in(text: str) -> int | None:
    """The rank that a message is about."""
    match = _IN_TEXT_RANK.search(text)
    return None if match is None else _rank(next(one for one in match.groups() if one))


def pid_in(text: str) -> int | None:
    """The process that a message is about."""
    match = _IN_TEXT_PID.search(text)
    return None if match is None else int(next(one for one in match.groups() if one))


def is_labelled(head: list[bytes]) -> bool:
    """True if most lines begin as srun --label writes them: then a number at the start is a rank."""
    lines = [line for line in head if line.strip()]
    return len(lines) >= 3 and sum(bool(re.match(rb" *\d{1,7}: ", line)) for line in lines) > 0.8 * len(lines)


def _rank(digits: str) -> int | None:
    number = int(digits)
    return number if number < MOST_RANKS else None


def _docker(text: str) -> str:
    try:
        entry = json.loads(text)
        return f"{entry.get('time', '')} {entry['log']}".lstrip()
    except (ValueError, KeyError, AttributeError, RecursionError):
        return text


def _time(match: re.Match[str], year: int) -> float | None:
    """Unix time; of a stamp without a zone, as if it were UTC: what matters is the order within one job."""
    try:
        if match.re is _ISO:
            parts = [int(one) for one in match.groups()[:6]]
            zone = match[8]
            moment = datetime(*parts, tzinfo=timezone.utc)  # type: ignore[arg-type,misc]
            seconds = moment.timestamp() + _fraction(match[7])
            return seconds - (_zone(zone) if zone and zone != "Z" else 0)
        if match.re is _GLOG:
            month, day, hour, minute, second = (int(one) for one in match.groups()[:5])
            return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp() + _fraction(
                match[6]
            )
        month, day, hour, minute, second = _MONTHS[match[1]], *(int(match[group]) for group in range(2, 6))
        in_year = int(match[6]) if match.re is _DATE else year
        return datetime(in_year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
    except (ValueError, KeyError, OverflowError):
        return None


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


def _zone(text: str) -> float:
    digits = text[1:].replace(":", "")
    return (-1 if text[0] == "-" else 1) * (int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0)


# The whole log


class LogReader:
    """One log. ``read`` it, then ask.

    Args:
        name: of the file, as it is to be shown.
        year: of time stamps without one.
        rank: of the file's only rank, where its name tells it.
        ends_at: CLOCK_MONOTONIC at which reading stops, wherever it is.
    """

    def __init__(self, name: str, year: int, rank: int | None = None, ends_at: float = float("inf")) -> None:
        self._name, self._year, self._rank, self._ends_at = name, year, rank, ends_at
        self._first: list[tuple[FailureLine, int]] = []
        self._last: deque[tuple[FailureLine, int]] = deque(maxlen=LAST)
        self._hints: deque[tuple[FailureLine, int]] = deque(maxlen=MOST_HINTS)
        self._frames: dict[int | None, Frame] = {}
        self._summary: dict[str, str] | None = None
        self._summary_left = 0
        self._labelled = False
        self._beyond: deque[tuple[bytes, int, int, float | None]] = deque(maxlen=MOST_BEYOND)
        self._timed = b""  # the newest line with a time stamp, of those that tell of no end
        self._named = self._progress = 0
        self._newest_progress = 0
        self._wanted = False  # progress is counted once an end was seen
        self.lines = 0
        self.newest: float | None = None
        self.cut = ""  # why the log was not read to its end

    def read(self, file: BinaryIO) -> None:
        """All of it."""
        rest = b""
        begun = False
        held = b""  # so that the last lines are read one by one
        while piece := file.read(PIECE_BYTES):
            if time.monotonic() > self._ends_at:
                self.cut = "it takes too long to read; the rest was left out"
                break
            data = rest + piece
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            whole, end, rest = data.rpartition(b"\n")
            if not end and len(data) < LONGEST_TAIL:
                rest = data
                continue
            if not end:
                whole, rest = data, b""
            if not begun:
                begun, self._labelled = True, is_labelled(whole.split(b"\n", 64)[:64])
            held = held + b"\n" + whole if held else whole
            if len(held) > PIECE_BYTES:
                before, held = _parted(held)
                self._passed(before)
        if held:
            before, last = _parted(held)
            if before:
                self._passed(before)
            self._piece(last)
        if rest:
            self._piece(rest)
        self._last_ones()
        if self._summary is not None:
            self._end_summary()

    @property
    def failures(self) -> list[FailureLine]:
        """The ends that were found, in the order of the lines; a hint only where nothing else was found."""
        kept = [*self._first, *self._last] or list(self._hints)
        return [
            FailureLine(
                **{name: getattr(one, name) for name in one.__struct_fields__ if name != "got_over"}, got_over=True
            )
            if self._progress - before >= GOT_OVER_LINES and (one, before) not in self._hints
            else one
            for one, before in kept
        ]

    def _passed(self, whole: bytes) -> None:
        """A piece in the middle."""
        self._piece(whole, WORDS if any(word in whole for word in COARSE) else ())

    def _piece(self, whole: bytes, words: Iterable[bytes] = WORDS) -> None:
        """A piece, its lines one by one where one of these words is in it."""
        words = [word for word in words if word in whole]
        if words or self._summary is not None:
            self._lines(whole, words)
            return
        self.lines += whole.count(b"\n") + 1
        if self._wanted and self._progress < GOT_OVER_LINES + self._newest_progress:
            self._progress += sum(1 for _ in _PROGRESS.finditer(whole))
        self._time_of(whole)

    def _lines(self, whole: bytes, words: list[bytes]) -> None:
        for raw in whole.split(b"\n"):
            self.lines += 1
            if self._wanted and _PROGRESS.search(raw):
                self._progress += 1
            if self._summary is not None or any(word in raw for word in words):
                self._line(raw)
            elif _TIMED.search(raw, 0, 80):
                self._timed = raw
        self._timed = b""
        self._time_of(whole)

    def _time_of(self, whole: bytes) -> None:
        """The newest time stamp of a piece, for the lines below that have none."""
        for raw in reversed(whole[-2000:].split(b"\n")[-8:]):
            at = parsed(raw, self._year, self._labelled).at
            if at is not None:
                self.newest = at
                return

    def _line(self, raw: bytes) -> None:
        if self._named >= MOST_NAMED:
            self._beyond.append((raw, self.lines, self._progress, self.newest))
            return
        if self._timed:
            self.newest = parsed(self._timed, self._year, self._labelled).at or self.newest
            self._timed = b""
        line = parsed(raw, self._year, self._labelled)
        self.newest = line.at or self.newest
        if self._summary is not None:
            self._in_summary(line.text)
            return
        if _SUMMARY.search(line.text):
            self._summary, self._summary_left = {}, SUMMARY_LINES
            return
        if _TRACEBACK in line.text:
            self._frames.pop(line.rank, None)
            return
        if match := _FRAME.match(line.text):
            frame = Frame(match["function"], match["file"], int(match["line"]))
            if (is_user(frame) or line.rank not in self._frames) and len(self._frames) < MOST_KEPT_APART:
                self._frames[line.rank] = frame
            return
        self._named += 1
        self._told(line)

    def _last_ones(self) -> None:
        """Of more lines than are held against the table, the last ones."""
        self._named = 0
        now = self.lines, self._progress, self.newest
        for raw, lines, progress, newest in self._beyond:
            self.lines, self._progress, self.newest = lines, progress, newest
            self._line(raw)
        self.lines, self._progress, self.newest = now

    def _told(self, line: Line) -> None:
        failure = named(line.text)
        if failure is None:
            return
        rank = line.rank if line.rank is not None else rank_in(line.text)
        frame = self._frames.pop(line.rank, None) if failure.owner in ("user_code", "data", "storage") else None
        self._keep(
            FailureLine(
                file=self._name,
                line=self.lines,
                text=line.text[:MOST_TEXT],
                rank=rank if rank is not None else self._rank,
                pid=line.pid or pid_in(line.text),
                host=line.host[:80],
                logged_at=line.at or self.newest,
                frame=frame,
            ),
            failure.hint,
        )

    def _keep(self, one: FailureLine, hint: bool = False) -> None:
        self._wanted, self._newest_progress = True, self._progress
        entry = (one, self._progress)
        if hint:
            self._hints.append(entry)
        elif len(self._first) < FIRST:
            self._first.append(entry)
        else:
            self._last.append(entry)

    def _in_summary(self, text: str) -> None:
        assert self._summary is not None
        self._summary_left -= 1
        if match := _FIELD.match(text):
            self._summary[match[1]] = match[2]
        if self._summary_left <= 0 or "traceback" in self._summary:
            self._end_summary()

    def _end_summary(self) -> None:
        """torchrun's own word about the rank that failed first."""
        told, self._summary = self._summary or {}, None
        code = _EXIT.match(told.get("exitcode", ""))
        number = re.match(r"(\d{1,7})\b", told.get("rank", ""))
        if code is None:
            return
        status = int(code[1])
        said = told.get("traceback", "")
        text = f"the rank that failed first: failed (exitcode: {status})" + (
            f" {said}" if said.startswith("Signal") else ""
        )
        self._keep(
            FailureLine(
                file=self._name,
                line=self.lines,
                text=text[:MOST_TEXT],
                rank=int(number[1]) if number else self._rank,
                pid=int(code[2]),
                host=told.get("host", "")[:80],
                logged_at=parsed(told.get("time", "").encode(), self._year).at or self.newest,
                exit_code=status if status >= 0 else None,
                signal=-status if status < 0 else None,
            )
        )


def _parted(held: bytes) -> tuple[bytes, bytes]:
    """What comes before the last lines, and these."""
    at = held.rfind(b"\n", 0, max(0, len(held) - LAST_BYTES))
    return (held[:at], held[at + 1 :]) if at >= 0 else (b"", held)


def read_log(file: BinaryIO, name: str, year: int, rank: int | None, ends_at: float) -> LogReader:
    """A log, read."""
    reader = LogReader(name, year, rank, ends_at)
    reader.read(file)
    return reader
