"""Logs, read from their start to their end in pieces: the lines that tell of an end, who wrote them and when.

Most of a log tells nothing of an end, and most of its lines differ from one another in their numbers alone. A piece is passed over if none
of a few words occurs in its lines without their digits, each of which is searched once; the others and the last ones are read line by
line. Memory does not grow with the file.

Before the words of a line may stand the time, the rank, the host, the level: prefixes of torchrun and torch, srun --label, kubectl logs
(--timestamps, --prefix), container runtimes (CRI, Docker's JSON), Python's logging, glog, syslog, dmesg (-T), Ray, NCCL_DEBUG.
"""

import json
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import BinaryIO, NamedTuple

import msgspec

from perfwatch.failures import ECHO, GENERAL, ORIGIN, PEER, THROUGH, named
from perfwatch.triage.questions import is_user
from perfwatch_probes.bounds import LATEST_CREATED, MOST_RANKS
from perfwatch_probes.readings import FailureLine, Frame, LogSpan

PIECE_BYTES = 1 << 18
LONGEST_TAIL = 1 << 16  # of a line without an end
FIRST, LAST = 150, 150  # ends of one log that are kept; of more those between them are left out
MOST_HINTS = 4
MOST_NAMED = 3000  # lines that are held against the table as they come; of those after them the last ones
MOST_BEYOND = 1000
LAST_BYTES = 1 << 16  # that are read line by line if any of WORDS is in them
TAIL_BYTES = (
    1 << 12
)  # and the last of these, whatever is in them: an end may be told in words that the search does not know
GOT_OVER_LINES, BEGAN_LINES = (
    20,
    3,
)  # of progress after an end, and after one from before all progress: the program went on
MOST_TEXT = 400
MOST_IN_ENTRY = 500  # lines of a traceback that is one entry
MOST_KEPT_APART = 4096  # that are kept apart in one log
SUMMARY_LINES = 14  # of torchrun's last words
MOST_RESUME_PIECES = 16  # in which a program says which checkpoint it has loaded, and begins to train

# Of a long log, pieces without any of these are passed over. No word here has a digit.
COARSE = (
    b"rror", b"xception", b"Kill", b"killed", b"ault", b"bort", b"SIG", b"imeout", b"CANCELLED", b"Xid", b"enied", b"NCCL WARN", b" nan",
    b"blocked for more", b"panic",
)  # fmt: skip
# Each end of the table has one of these in its line.
WORDS = (
    b"rror", b"xception", b"Traceback", b'  File "', b'  File \\"',
    b"Kill", b"killed", b"ault", b"bort", b"SIG", b"ignal ", b"NaN", b"nan", b" inf",
    b"finite", b"imeout", b"imed out",
    b"TIME", b"REEMPT", b"reempt", b"CANCELLED", b"NODE_FAIL", b"NODE F", b"OUT_OF", b"OOM", b"oom-kill",
    b"oom_", b"Xid", b"ssertion", b"No space", b"enied", b"nterrupt", b"erminated", b"terminate called", b"NCCL WARN",
    b"atchdog", b"Root Cause",    b"ut of memory", b"shared memory", b"llocate", b"llegal", b"aligned", b"itcode", b"it code", b"it Code",
    b"turn code", b"emporarily",
    b"pthread_create", b"debug info", b"ith code", b"loss scale", b"exceeded limit", b"TERM_",
    b"or newer", b"because of the following", b"such file", b"not found", b"TimeoutExpired",
    b"by peer", b"quota",
    b"fallen", b"No module", b"No such", b"shared object", b"undefined symbol", b"no kernel image", b"No CUDA", b"Evicted", b"DeadlineExc",
    b"non-zero", b"GPU is lost", b"in use", b"FAILED", b"SystemExit", b"StopIteration", b"_STATUS_", b"._dynamo", 
    b"Of Memory", b"NVLink", b"compatible", b"blocked for", b"detected stall", b"soft lockup", b"EDAC", b"panic", b"dcgmi diag",
    b"expected device", b"Thread 0x", b"has died", b"has crashed", b"marked dead", b"load_state_dict", b"_EXHAUSTED", b"Check failed",
    b"condition", b"imminent", b"container-cli", b"device driver", b"MPI_ABORT", b"xit status", b"means the child", b"backoff", b"Back-off",
    b"Unable to", b"eartbeat", b"Barrier", b"MaxRuntime", b"NVML", b"iverged", b"what():", b"refused", b"longer alive",
    b"times out", b"aicore", b"zero exit",
    *(word.encode() for word in ("已", "Getötet", "Убито", "错误", "griffsfehler", "Abgebrochen")), b"egmenta", b"too many ind",
    b"death signal", b"shut down", b"truncated", b"thread exited", b"Cannot load", b"smashing", b"virtual method", b"terminating",
    b"breakpoint trap", b"orrupted", b"erification failed",
    b"creation failed", b"got 0 bytes", b"ogging error", b"SUCCEEDED", b" failed", b"failure: ", b"low on resource",
    b"exceeds the limit", b"zsh: ", b" killed", b"vailable RAM", b"phemeral", b"is available", b"kernel found", b"not initialized",
    b"ervice Un", b"ad Gateway", b"No available kernel", b"No operator", b"ERROR", b"communication with", b"BOOT_FAIL",
    b"xceeded", b"specified deadline", b"TaintManager", b"evicted", b"eclaimed", b"ith status", b"tatus code", b"Hangup", b"trap: ",
    b"free(): ", b"alloc(): ", b"overflow", b"nvalid pointer", b"VIOLATION", b" violation", b"ernel died", b"ernel crashed",
    b"have died", b"restarting kernel", b"TERMINATION", b"CrashLoop", b"memory limit", b"hard limit", b"abnormally", b"panicked",
    b"did not complete", b"instruction", b"itCode", b"it_code", b"orbidden", b"nauthorized",
    b"is dead", b"reemption", b"nterruption",
    b"GPU re", b"naccessible", b"wallclock", b"walltime", b"wall clock", b"request of", b"Signal: ", b"BPT", b"bad_alloc", b"Errno ",
)  # fmt: skip
_PROGRESS = re.compile(rb"(?i)\b(?:step|iter(?:ation)?|epoch)s?\b[^\n]{0,12}\d|\bit/s\b|\bs/it\b|\bloss\b[^\n]{0,6}\d")
_FRAME = re.compile(r'^(?:> |\s*)File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9}),? in (?P<function>.{1,200})$')
# The same by rich and by IPython, which mark the line of the source that failed among its neighbours.
_MARKED_FRAME = re.compile(
    r"[│|] (?P<boxed>\S.{0,300}?\.py):(?P<at>\d{1,9}) in (?P<name>[\w<>.]{1,200})|"
    r"(?:File )?(?P<file>\S{1,300}\.py)(?::(?P<line>\d{1,9}),)? in (?P<function>[\w<>.]{1,200})\("
)
_MARKED_SOURCE = re.compile(r"(?:[│|] *[❱>] *|-{1,10}> ?)\d{1,9}(?P<source> .{0,400})")
_GLUED = re.compile(
    rb"(?<=[^\s\[|>-]) *(?=(?:ERROR|CRITICAL|WARNING):[A-Za-z_][\w.]*:)"
)  # records of loggers in one line
_IN_THREAD = re.compile(r"Exception in thread ")
_PRINTED = "Error: "
_MARKED_NAMES = ("boxed", "file"), ("at", "line"), ("name", "function")
_MARKS = re.compile(r"(?:╭─|\+--|[A-Za-z_][\w.]* {2,})")  # before its title
_BESIDE = re.compile(r"\s*(?:[│╭╰]|[|+][ -]|<ipython-input|Cell In\[|\d{1,9}(?: |$)|$|\.\.\.)")
_TIMED = re.compile(rb"\d\d:\d\d:\d\d")
_TRACEBACK, _IGNORED = "Traceback (most recent call last)", "Exception ignored in"
# Python prints what a logger's handler raised and the message that it was given, and goes on; so it does with what is run at its exit,
# and torch's thread that pins memory leaves it to the main one to say what it means.
_LOGGING, _LOGGED = "--- Logging error ---", "Arguments: "
_PASSED_OVER = re.compile(
    r'/multiprocessing/util\.py", line \d+, in _run_finalizers\b|/weakref\.py", line \d+, in _exitfunc\b|'
    r'/torch/utils/data/_utils/pin_memory\.py", line \d+, in _?pin_memory_loop\b'
)
# What follows is the same failure in other words: an exception that was raised for another one, or the one that a worker raised
# and its parent raised again.
_CHAINED = re.compile(
    r"\s*(?:During handling of the above exception|The above exception was the direct cause|"
    r"Original Traceback \()"
)
# torchrun, of the ranks of its host: what it says later of other hosts ends nothing.
_SUCCEEDED = re.compile(r"worker group successfully finished|worker group finished \(SUCCEEDED\)")
_NO_ANSWER = re.compile(
    r"\b(?:Empty|TimeoutError|timeout)(?:: .{0,40})?$"
)  # a wait that was given up: for what, the next one says
SOURCE_INDENT = 4  # of the source below a frame
MOST_SOURCE = 20  # lines of it
LONGEST_TRACEBACK = 60  # lines, of an exception that Python passes over
NOT_STARTED = ("rendezvous_timeout", "address_in_use")
AT_ANY_LEVEL = ("nan_guard",)  # what the program computed, which loggers call information
# At the level of a warning: a signal, by glog, and what failed in a kernel of TensorFlow's.
_SIGNALLED = re.compile(r"^(?:\*\*\* SIG[A-Z]+ \(@0x|OP_REQUIRES failed at )")
# faulthandler's, below the signal that it tells of: the thread that got it comes first, its innermost frame first.
_FAULT, _OTHER_THREAD = "Fatal Python error: ", re.compile(r"^Thread 0x\w+")
_SUMMARY = re.compile(r"Root Cause \(first observed failure\)")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|traceback)\s*: (.*)$")
_EXIT = re.compile(r"(-?\d{1,9}) \(pid: (\d{1,9})\)")
# What starts the job again below the same log: torchrun (elastic/agent/server/api.py). After slurmd's last words on a job it may be
# requeued, and is if steps follow.
_AGAIN = re.compile(r"Worker group \w+\. \d+/\d+ attempts left; will restart")
_MAYBE_AGAIN = re.compile(r"DUE TO (?:PREEMPTION|JOB REQUEUE|NODE FAILURE)")
CHECKPOINT = (b"heckpoint", b"ckpt", b"CKPT")
_CHECKPOINT = re.compile(rb"heckpoint|ckpt|CKPT")
# Not what counts anew in each epoch: a progress bar, or a step in a line that also tells an epoch.
_STEP = re.compile(rb"(?i)(?<![a-z])(?:global_?)?(?:step|iter(?:ation)?)s?[\"']?[\s:=#\[(]{1,12}(\d{1,12})(?![\d.])")
_EPOCH = re.compile(rb"(?i)epoch")
_LOADS = re.compile(rb"(?i)\b(?:resum\w*|restor\w*|load(?:ed|ing)?|continu\w*)\b")
_SAVES = re.compile(rb"(?i)\b(?:sav(?:ed|ing)|writ(?:ing|ten)|wrote)\b")
_STEP_NAMED = re.compile(rb"(?i)(?:step|iter(?:ation)?)s?[^\d\n]{0,12}(\d{1,12})(?!\d)")
_NUMBERED = re.compile(rb"(?i)(?:checkpoint|ckpt)s?[-_ /#:]{1,3}(\d{1,12})(?!\d)")

LONGEST_LINE = 4000
LONGEST_ENTRY = 1 << 16  # of a log whose lines are JSON
# Fields of such lines. Docker: log. journald: MESSAGE, microseconds. Python's loggers: the others.
TEXTS = ("log", "MESSAGE", "message", "msg", "event", "exception", "exc_info", "stack", "traceback")
TIMES = ("time", "timestamp", "@timestamp", "asctime", "ts", "__REALTIME_TIMESTAMP")
MOST_PREFIXES = 8
LABELLED = 0.8  # of the first lines

_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[@-_]|[\0-\x08\x0b-\x1f\x7f]")
_ISO = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z\b|[+-]\d\d:?\d\d)?\]?(?:\s+(?:stdout|stderr) [FP](?=\s))?\s*"
)
_GLOG = re.compile(
    r"\[?[EWIFCV](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s+(?:\d+\s+)?[\w./+-]+:\d+\]\s*(?:\[\w+\]\s*)?"
)
_SYSLOG = re.compile(
    r"([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (?P<host>[\w.-]+) (?:kernel|[\w.-]+\[\d+\]|[\w.-]+):\s*"
)
_DATE = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\]\s*")
_BOOT = re.compile(r"(?:kernel: )?\[ *\d{1,9}\.\d{1,6}\]\s*(?:kernel: )?")
_RANK = re.compile(r"\[(?:rank:? ?|Rank |default|RANK[ :])(\d{1,9})\][:]?\s*")
_TRAINER = re.compile(r"\[[A-Za-z_][\w-]*?(\d{1,9})\]:\s?")  # torchrun --tee: [trainer0]:
_TAGGED = re.compile(r"\[\d{1,9},(?:mpirank:)?(\d{1,9})[^\]]{0,60}\]<std(?:out|err)>: ?")  # mpirun --tag-output
_OPEN_MPI = re.compile(r"\[(?P<host>[A-Za-z][\w.-]{0,80}):(\d{1,9})\] (?:\[ *\d+\] )?")
_MARGIN = re.compile(r" *\| (?= *[\w\[(])")  # of an exception in a group
# The prefix of a relay (a launcher, a log collector) before each line of a traceback.
_TAG = re.compile(
    r"\[[A-Za-z][\w.-]{0,40}\] (?=Traceback \(| *File \"| {4}|Exception |[\w.]{1,80}(?:Error|Exception): )"
)
_COMPOSED = re.compile(r"[\w.-]{1,60}-\d{1,4} +\| |[0-9a-f]{6,12} \|\| ")
_LABEL = re.compile(r" *(\d{1,7}): ")  # srun --label
_HOSTED = re.compile(r"(?P<host>(?=[\w.-]*\d)(?=[\w-]*[A-Za-z.])[\w.-]{1,80}): ?")  # pdsh, clush, some of mpirun's
_RAY = re.compile(r"\((?:[\w.-]+,? )?(?:rank=\d{1,9}, )?pid=(\d{1,9})(?:, ip=(?P<host>[\w.:-]+))?\)\s*")
_POD = re.compile(r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\]\s*")
_NCCL = re.compile(r"(?P<host>[\w.-]+):(\d{1,9}):\d{1,9} (?=\[\d+\] |NCCL )")
_WORD, _LETTER = "(ERROR|CRITICAL|WARNING|INFO|DEBUG|FATAL)", "([EWIFCD])"
_LEVEL = re.compile(
    rf"(?:[-|:]\s+)?(?:[\w.]{{1,60}}\s+[-|:]\s+)?\[?{_WORD}\]?\s*[-|:]\s*(?:[a-z][\w.]*(?::\d+)?\s*[-|:]\s+)?|"
    rf"(?:[\w.]{{1,60}}: )?\[{_WORD}\] (?:\[[\w.]+:[\w.:-]{{1,100}}\] ?)?|"  # torch.distributed.elastic, DeepSpeed
    rf"\[{_WORD}\|[^\]]{{1,80}}\](?:\s+[\w.]+:\d+)?(?: >>)?\s*|"  # Hugging Face
    rf"\s*{_WORD} [\w./-]+:\d+ -- |"  # Ray
    rf"[:\[]?\s*{_LETTER} (?:\d+ \d+\] )?(?:\([\w-]+\) )?[\w./-]+:\d+[\]:]+\s*(?:\[\w+\]\s*)?|"  # torch without a time, TensorFlow
    rf"\[NeMo {_LETTER} "
)
_SHORT = re.compile(rf"{_WORD} (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[?[\w./]+:\d+\]\s?")  # vLLM
_PID = re.compile(r"\[PID:(\d{1,9})\]\s*")
_NCCL_INFO = re.compile(r"(?:\[\d+\] )?NCCL (?:INFO|TRACE|VERSION)\b")
_KERNELS = re.compile(r"task \S{1,32}:\d+ blocked|rcu")  # it writes INFO before what ends a job
_IN_TEXT_RANK = re.compile(
    r"\[Rank (\d{1,9})\]|\brank[ :=]+(\d{1,9})\b|^srun: error: [\w.-]{1,80}: task (\d{1,9}): |"
    r"\[PG ID \d+ PG GUID [^\]]{0,80}? Rank (\d{1,9})\]",
    re.IGNORECASE,
)
_IN_TEXT_PID = re.compile(
    r"Killed process (\d{1,9})|\bPID[ :=]+(\d{1,9})|\(pid:? ?(\d{1,9})\)|\bpid[=: ]+'?(\d{1,9})|\[(\d{1,9})\]: segfault"
)
_MONTHS = {name: number for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}


# One line


class Line(NamedTuple):
    """What is left of a line, and what stood before it.

    mild: True if its logger calls it a warning or less. indent: the spaces before the text.
    """

    text: str
    at: float | None = None
    rank: int | None = None
    pid: int | None = None
    host: str = ""
    mild: bool = False
    indent: int = 0


class _Kept(NamedTuple):
    """A line that tells of an end: how many lines of progress had been counted by then, if any was seen, and the end's weight.

    aside: True if it ended a thread of its own, or was printed and not raised: the process may go on.
    """

    line: FailureLine
    progress: int
    trained: bool
    weight: int
    aside: bool = False


def parsed(raw: bytes, year: int, label: re.Pattern[str] | None = None) -> Line:
    """A line of a log.

    Args:
        raw: without its end.
        year: of a time stamp that has none.
        label: what a launcher writes at the start of each line: the rank or the host.
    """
    text = raw[:LONGEST_LINE].decode("utf-8", "replace")
    if text.startswith("{") and (lines := unwrapped(raw)):
        text = lines[-1].decode("utf-8", "replace")[:LONGEST_LINE]
    text = _STEERING.sub("", text).rstrip()
    at: float | None = None
    rank: int | None = None
    pid: int | None = None
    host = level = ""
    kernel = False
    whole = text
    for _ in range(MOST_PREFIXES):
        before = text
        if label is not None and (match := label.match(text)) and not (rank or host):
            if label is _LABEL:
                rank = _rank(match[1])
            else:
                host = match["host"]
        elif match := _RANK.match(text) or _TRAINER.match(text) or _TAGGED.match(text):
            rank = _rank(
                match[1]
            )  # a launcher's number comes before that of the rank itself, and may be of its host alone
        elif match := _ISO.match(text) or _GLOG.match(text) or _DATE.match(text) or _SHORT.match(text):
            at = at or _time(match, year)
            level = match[1] if match.re is _SHORT else match[0].lstrip("[")[:1] if match.re is _GLOG else level
            kernel = kernel or match.re is _DATE
        elif match := _SYSLOG.match(text):
            at, host, kernel = at or _time(match, year), host or match["host"], True
        elif match := _RAY.match(text) or _NCCL.match(text) or _OPEN_MPI.match(text):
            groups = match.groupdict()
            host = host or groups.get("host") or ""
            pid = pid or int(next(one for one in match.groups() if one and one.isdigit()))
        elif match := _POD.match(text):
            host = host or match["host"]
        elif match := _LEVEL.match(text):
            level = level or next(one for one in match.groups() if one)
        elif match := _PID.match(text):
            pid = pid or int(match[1])
        elif match := _BOOT.match(text) or _COMPOSED.match(text) or _MARGIN.match(text) or _TAG.match(text):
            kernel = kernel or match.re is _BOOT
        else:
            break
        text = text[match.end() :]
        if text == before:
            break
    mild = level[:1] in {"I", "W", "D", "V"} and not kernel and not _KERNELS.match(text)
    indent = len(whole) - len(text) - len(whole[: len(whole) - len(text)].rstrip()) + len(text) - len(text.lstrip())
    return Line(text, at, rank, pid, host, mild or _NCCL_INFO.match(text) is not None, indent)


def rank_in(text: str) -> int | None:
    """The rank that a message is about."""
    match = _IN_TEXT_RANK.search(text)
    return None if match is None else _rank(next(one for one in match.groups() if one))


def pid_in(text: str) -> int | None:
    """The process that a message is about."""
    match = _IN_TEXT_PID.search(text)
    return None if match is None else int(next(one for one in match.groups() if one))


def label_of(head: list[bytes]) -> re.Pattern[str] | None:
    """What a launcher writes before most lines, if it does: a rank (srun --label), or one of a few hosts (pdsh)."""
    lines = [line.decode("utf-8", "replace") for line in head if line.strip()]
    for label in (_LABEL, _HOSTED):
        found = [match[1] for line in lines if (match := label.match(line))]
        if len(found) > max(2, LABELLED * len(lines)) and (label is _LABEL or len({*found}) <= len(found) / 2):
            return label
    return None


def _rank(digits: str) -> int | None:
    number = int(digits)
    return number if number < MOST_RANKS else None


def unwrapped(raw: bytes) -> list[bytes]:
    """The lines of text in an entry of a log that is written as JSON, each with the entry's time; none if it is no such entry.

    Docker, Kubernetes, journalctl -o json, and Python's structured loggers, whose tracebacks have a field of their own.
    """
    try:
        entry = json.loads(raw[:LONGEST_ENTRY])
        texts = [entry[key] for key in TEXTS if isinstance(entry.get(key), str)]
        moment = next((entry[key] for key in TIMES if isinstance(entry.get(key), str | int | float)), "")
        stamp = _stamp(moment)
    except (ValueError, AttributeError, RecursionError, OverflowError):
        return []
    lines = "\n".join(texts).encode("utf-8", "replace").split(b"\n")
    return [stamp + (b" " if line[:1] == b"{" else b"") + line for line in lines if line.strip()]


def _stamp(moment: str | float) -> bytes:
    """A time as ISO 8601: of a text that is one already, of seconds, or of journald's microseconds. Raises ValueError."""
    if isinstance(moment, str) and not moment.isdigit():
        return moment[:40].encode("utf-8", "replace") + b" " if moment else b""
    seconds = float(moment)
    seconds /= 1e6 if seconds > LATEST_CREATED * 1e3 else 1e3 if seconds > LATEST_CREATED else 1.0
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ ").encode()


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
        if match.re is _SHORT:
            return datetime(year, *(int(match[group]) for group in range(2, 7)), tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type,misc]
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
        self._first: list[_Kept] = []
        self._last: deque[_Kept] = deque(maxlen=LAST)
        self._hints: deque[_Kept] = deque(maxlen=MOST_HINTS)
        self._frames: dict[int | None, Frame] = {}
        self._faults: dict[int | None, FailureLine] = {}  # by rank, those whose stack comes below them
        self._sources: dict[
            int | None, tuple[str, int]
        ] = {}  # by rank, the frame whose source comes below it, and its line
        self._through: dict[int | None, Line] = {}  # by rank, the frame that makes an exception a particular one
        self._ignored: dict[
            int | None, tuple[int, str]
        ] = {}  # by rank, where Python says that it passes over an exception, until what
        self._succeeded: set[str] = set()  # hosts
        self._traced: set[int | None] = set()  # ranks with a traceback since Python said that it passes over one
        self._relayed: set[int | None] = (
            set()
        )  # ranks whose frames have a level of their own: set by a relay of each line
        self._aside: set[int | None] = set()  # ranks whose next exception ends a thread of its own
        self._marked: set[int | None] = set()  # ranks whose traceback is one of rich or of IPython
        self._general: dict[
            int | None, _Kept
        ] = {}  # by rank, its newest exception that says no more than that it was raised
        self._chained: set[int | None] = set()  # ranks whose next exception was raised while that one was handled
        self._summary: dict[str, str] | None = None
        self._summary_left = 0
        self._label: re.Pattern[str] | None = None
        self._beyond: deque[tuple[bytes, int, int, float | None]] = deque(maxlen=MOST_BEYOND)
        self._timed = b""  # the newest line with a time stamp, of those that tell of no end
        self._named = self._progress = 0
        self._newest_progress = 0
        self._wanted = False  # progress is counted once an end was seen
        self._trains = False  # some progress was seen
        self._attempt = 0  # below this log: how often the job was started again so far
        self._requeued: int | None = None  # the progress when its scheduler may have done so
        self._again: int | None = None  # the progress when its launcher was about to do so
        self._pieces = 0
        self._steps: list[int | None] = [None, None]
        self._checkpoints: dict[str, int | None] = {"resumed": None, "saved": None}
        self.lines = 0
        self.oldest: float | None = None
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
                begun, self._label = True, label_of(whole.split(b"\n", 64)[:64])
                self._begun(whole)
            held = held + b"\n" + whole if held else whole
            if len(held) > PIECE_BYTES:
                before, held = _parted(held)
                self._passed(before)
        if held:
            before, last = _parted(held)
            if before:
                self._passed(before)
            self._checkpoints_in(last, last)
            self._last_piece(last, TAIL_BYTES - len(rest))
        if rest:
            if not begun:
                self._begun(rest)
            self._checkpoints_in(rest, rest)
            self._last_piece(rest)
        for step in _steps((held + b"\n" + rest)[-LAST_BYTES:]):
            self._steps[1] = step
        self._last_ones()
        for line in [*self._through.values()]:  # of tracebacks that were cut off
            self._told(line)
        if self._again is not None and self._progress > self._again:
            self._started_again()
        if self._summary is not None:
            self._end_summary()

    @property
    def failures(self) -> list[FailureLine]:
        """The ends that were found, in the order of the lines; a hint only where nothing else was found."""
        kept = [*self._first, *self._last]
        if not kept and self._hints and self._progress < self._hints[-1].progress + GOT_OVER_LINES:
            return [one.line for one in self._hints]
        late = [
            one for one in kept if one.trained and not self._got_over(one, BEGAN_LINES if one.aside else GOT_OVER_LINES)
        ]
        # What only follows an end, or repeats it, wants one: then what came before all progress may be that.
        early = GOT_OVER_LINES if late and all(one.weight != ORIGIN for one in late) else BEGAN_LINES
        return [
            msgspec.structs.replace(
                one.line,
                got_over=self._got_over(one, BEGAN_LINES if one.aside else GOT_OVER_LINES if one.trained else early)
                or _survived(one, late),
            )
            for one in kept
        ]

    def _got_over(self, one: "_Kept", lines: int) -> bool:
        return one.line.attempt == self._attempt and self._progress - one.progress >= lines

    @property
    def restarted(self) -> bool:
        """True if the job was started again below this log."""
        return self._attempt > 0

    def span(self) -> LogSpan:
        """From when to when it was written, and how far the training came."""
        first, last = self._steps
        return LogSpan(
            file=self._name,
            began=self.oldest,
            ended=self.newest,
            first_step=first,
            last_step=last,
            resumed_step=self._checkpoints["resumed"],
            saved_step=self._checkpoints["saved"],
        )

    def _begun(self, whole: bytes) -> None:
        """Its first lines."""
        stamps = (parsed(raw, self._year, self._label).at for raw in whole.split(b"\n", 400)[:400])
        self.oldest = next((at for at in stamps if at is not None), None)
        self._steps[0] = next(_steps(whole), None)

    def _checkpoints_in(self, whole: bytes, shapes: bytes) -> None:
        """What a piece says about checkpoints that were loaded, in the first pieces, and saved."""
        self._pieces += 1
        if not any(word in shapes for word in CHECKPOINT):  # ten times as fast as the expression
            return
        for raw in _lines_with(whole, _CHECKPOINT):
            saves = _SAVES.search(raw) is not None
            what = "saved" if saves else "resumed"
            if saves or (self._pieces <= MOST_RESUME_PIECES and _LOADS.search(raw)):
                step = _step_of(raw)
                self._checkpoints[what] = self._checkpoints[what] if step is None else step

    def _passed(self, whole: bytes) -> None:
        """A piece in the middle."""
        shapes = _shapes(whole)
        self._checkpoints_in(whole, shapes)
        self._piece(whole, WORDS if any(word in shapes for word in COARSE) else ())

    def _piece(self, whole: bytes, words: Iterable[bytes] = WORDS) -> None:
        """A piece, its lines one by one where one of these words is in it."""
        words = [word for word in words if word in whole]
        if words or self._summary is not None or self._sources:
            self._lines(whole, words)
            return
        self.lines += whole.count(b"\n") + 1
        if not self._trains and self._pieces <= MOST_RESUME_PIECES:
            self._trains = _PROGRESS.search(whole) is not None
        if self._wanted and self._progress < GOT_OVER_LINES + self._newest_progress:
            self._progress += sum(1 for _ in _PROGRESS.finditer(whole))
        self._time_of(whole)

    def _last_piece(self, whole: bytes, tail_bytes: int = TAIL_BYTES) -> None:
        """The last lines, the very last of them whatever is in them."""
        at = whole.rfind(b"\n", 0, max(0, len(whole) - max(0, tail_bytes)))
        if at >= 0:
            self._piece(whole[:at])
        self._lines(whole[at + 1 :], [b""])

    def _lines(self, whole: bytes, words: list[bytes]) -> None:
        for raw in whole.split(b"\n"):
            self.lines += 1
            if (self._wanted or not self._trains) and _PROGRESS.search(raw):
                self._progress, self._trains = self._progress + self._wanted, True
            if self._summary is not None or self._sources or self._ignored or any(word in raw for word in words):
                self._line(raw)
                self._sources = {rank: one for rank, one in self._sources.items() if one[1] + MOST_SOURCE > self.lines}
                self._ignored = {
                    rank: one for rank, one in self._ignored.items() if one[0] + LONGEST_TRACEBACK > self.lines
                }
            elif _TIMED.search(raw, 0, 80):
                self._timed = raw
        self._timed = b""
        self._time_of(whole)

    def _time_of(self, whole: bytes) -> None:
        """The newest time stamp of a piece, for the lines below that have none."""
        for raw in reversed(whole[-2000:].split(b"\n")[-8:]):
            at = parsed(raw, self._year, self._label).at
            if at is not None:
                self.newest = at
                return

    def _line(self, raw: bytes) -> None:
        if raw.count(b"ERROR:") + raw.count(b"WARNING:") > 1 and len(parts := _GLUED.split(raw[:LONGEST_ENTRY])) > 1:
            for part in parts:
                self._line(part)
            return
        if raw[:1] == b"{" and self._named < MOST_NAMED and (lines := unwrapped(raw)):
            for one in lines[:MOST_IN_ENTRY]:
                self._line(one)
            return
        if self._named >= MOST_NAMED:
            self._beyond.append((raw, self.lines, self._progress, self.newest))
            return
        if self._timed:
            self.newest = parsed(self._timed, self._year, self._label).at or self.newest
            self._timed = b""
        line = parsed(raw, self._year, self._label)
        self.newest = line.at or self.newest
        if self._summary is not None:
            self._in_summary(line.text)
            return
        if _SUMMARY.search(line.text):
            self._summary, self._summary_left = {}, SUMMARY_LINES
            return
        if _IGNORED in line.text or _LOGGING in line.text:
            self._ignored[line.rank] = self.lines, _LOGGED if _LOGGING in line.text else ""
            self._traced.discard(line.rank)
            return
        if _IN_THREAD.match(line.text):
            self._aside.add(line.rank)
            return
        if _SUCCEEDED.search(line.text):
            self._succeeded.add(line.host)
            return
        if _CHAINED.match(line.text):
            self._chained.add(line.rank)
        if _TRACEBACK in line.text:
            if " " in (before := line.text.partition(_TRACEBACK)[0].strip()):  # a record without an end of line
                self._told(line._replace(text=before))
            self._frames.pop(line.rank, None)
            self._through.pop(line.rank, None)
            self._marked.discard(line.rank)
            if line.rank in self._traced and not self._ignored.get(line.rank, (0, _LOGGED))[1]:
                del self._ignored[line.rank]  # the traceback that is passed over was torn: this is another one
            self._traced.add(line.rank)
            if _MARKS.match(line.text) and len(self._marked) < MOST_KEPT_APART:
                self._marked.add(line.rank)
                self._sources[line.rank] = "", self.lines
            return
        if line.rank in self._marked:
            if match := _MARKED_SOURCE.match(line.text):
                line = line._replace(text=match["source"].rstrip("│| "), indent=SOURCE_INDENT)
            elif match := _MARKED_FRAME.match(line.text):
                file, number, function = (match[one] or match[other] for one, other in _MARKED_NAMES)
                line = line._replace(text=f'File "{file}", line {number or 1}, in {function}')
            elif _BESIDE.match(line.text):
                return
        if match := _FRAME.match(line.text):
            if _PASSED_OVER.search(line.text):
                self._ignored[line.rank] = self.lines, ""
            self._sources[line.rank] = line.text.strip(), self.lines
            (self._relayed.add if line.mild else self._relayed.discard)(line.rank)
            frame = Frame(match["function"], match["file"], int(match["line"]))
            if line.rank in self._faults:
                if is_user(frame):
                    msgspec.structs.force_setattr(self._faults.pop(line.rank), "frame", frame)
                return
            if (is_user(frame) or line.rank not in self._frames) and len(self._frames) < MOST_KEPT_APART:
                self._frames[line.rank] = frame
            self._passed_through(line, line.text)
            return
        if _OTHER_THREAD.match(line.text):
            self._faults.pop(line.rank, None)  # none of the program's own in the stack of the signal
            return
        above, _ = self._sources.get(line.rank, ("", 0))
        if line.rank in self._sources and line.indent >= SOURCE_INDENT:
            if above:
                self._passed_through(line, f"{above}: {line.text.strip()}")
            return
        self._sources.pop(line.rank, None)
        self._marked.discard(line.rank)
        if line.rank in self._ignored:
            if line.text.startswith(self._ignored[line.rank][1]):
                del self._ignored[line.rank]
            self._through.pop(line.rank, None)
            return
        if self._requeued is not None and self._progress > self._requeued:
            self._attempt, self._requeued = self._attempt + 1, None
        self._named += 1
        self._told(line, above)
        if _AGAIN.search(line.text):
            self._again = self._progress
        elif self._requeued is None and _MAYBE_AGAIN.search(line.text):
            self._requeued = self._progress

    def _last_ones(self) -> None:
        """Of more lines than are held against the table, the last ones."""
        self._named = 0
        now = self.lines, self._progress, self.newest
        for raw, lines, progress, newest in self._beyond:
            self.lines, self._progress, self.newest = lines, progress, newest
            self._line(raw)
        self.lines, self._progress, self.newest = now

    def _passed_through(self, line: Line, frame: str) -> None:
        """A frame of a traceback, with its source if that is known."""
        if named(frame) is not None and len(self._through) < MOST_KEPT_APART:
            self._through[line.rank] = line._replace(text=frame.strip())

    def _told(self, line: Line, above: str = "") -> None:
        """A line, with the frame above it if it is the exception of a traceback."""
        failure = named(line.text)
        if above:
            through = self._through.pop(line.rank, None)
            particular = None if through is None else named(through.text)
            if failure is None:
                line = line._replace(text=f"{above}{THROUGH}{line.text}")
                failure = named(line.text)
            elif through is not None and particular is not None and failure.name in particular.instead_of:
                line, failure = line._replace(text=f"{through.text}{THROUGH}{line.text}"), particular
        told = failure is not None and (
            failure.name in AT_ANY_LEVEL or (failure.weight != PEER and _SIGNALLED.match(line.text) is not None)
        )
        told = told or (above != "" and line.rank in self._relayed)
        if failure is None or (line.mild and failure.weight < ECHO and not told):
            return
        if failure.weight != ORIGIN and line.host in self._succeeded:
            return
        if failure.name not in NOT_STARTED:
            self._started_again()
        rank = line.rank if line.rank is not None else rank_in(line.text)
        frame = self._frames.pop(line.rank, None) if failure.owner in ("user_code", "data", "storage") else None
        found = FailureLine(
            file=self._name,
            line=self.lines,
            text=line.text.strip()[:MOST_TEXT],
            rank=rank if rank is not None else self._rank,
            pid=line.pid or pid_in(line.text),
            host=line.host[:80],
            logged_at=line.at or self.newest,
            frame=frame,
            attempt=self._attempt,
        )
        if line.text.startswith(_FAULT) and len(self._faults) < MOST_KEPT_APART:
            self._faults[line.rank] = found
        aside = line.rank in self._aside or (not above and line.text.startswith(_PRINTED))
        kept = self._keep(found, failure.weight, failure.hint, aside)
        self._aside.discard(line.rank)
        general = self._general.pop(line.rank, None)
        if failure.name in GENERAL:
            self._general[line.rank] = kept
        elif (
            general is not None
            and line.rank in self._chained
            and failure.weight <= (PEER if _NO_ANSWER.search(general.line.text) else ORIGIN)
        ):
            for ends in (self._first, self._last):
                if general in ends:
                    ends.remove(general)
        self._chained.discard(line.rank)

    def _started_again(self) -> None:
        """The ranks run again after their launcher was about to start them, unless they never met."""
        self._attempt, self._again = self._attempt + (self._again is not None), None

    def _keep(self, one: FailureLine, weight: int = ECHO, hint: bool = False, aside: bool = False) -> _Kept:
        self._wanted, self._newest_progress = True, self._progress
        entry = _Kept(one, self._progress, self._trains, weight, aside)
        if hint:
            self._hints.append(entry)
        elif len(self._first) < FIRST:
            self._first.append(entry)
        else:
            self._last.append(entry)
        return entry

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
                attempt=self._attempt,
            )
        )


def _survived(one: _Kept, late: list[_Kept]) -> bool:
    """True if a process ended in a way of its own in training, and this is from before it began to train."""
    return not one.trained and any(
        other.weight == ORIGIN and other.line.rank == one.line.rank and other.line.attempt == one.line.attempt
        for other in late
    )


def _steps(whole: bytes) -> Iterator[int]:
    """The numbers of steps in some lines, as they come."""
    for match in _STEP.finditer(whole):
        begins, ends = whole.rfind(b"\n", 0, match.start()) + 1, whole.find(b"\n", match.end())
        if not _EPOCH.search(whole, begins, ends if ends >= 0 else len(whole)):
            yield int(match[1])


def _step_of(line: bytes) -> int | None:
    """The step that a line about a checkpoint tells: the last number that is called one, else the number of the checkpoint."""
    found = _STEP_NAMED.findall(line[:LONGEST_LINE]) or _NUMBERED.findall(line[:LONGEST_LINE])
    return int(found[-1]) if found else None


def _lines_with(whole: bytes, word: re.Pattern[bytes]) -> Iterable[bytes]:
    """The lines in which a word is."""
    end = -1
    for match in word.finditer(whole):
        if match.start() > end:
            start, end = whole.rfind(b"\n", 0, match.start()) + 1, whole.find(b"\n", match.end())
            end = len(whole) if end < 0 else end
            yield whole[start:end]


def _shapes(whole: bytes) -> bytes:
    """The lines without their digits, each once: of a training log a hundredth, where a search for one word of the whole takes as long."""
    return b"\n".join({*whole.translate(None, b"0123456789").split(b"\n")})


def _parted(held: bytes) -> tuple[bytes, bytes]:
    """What comes before the last lines, and these."""
    at = held.rfind(b"\n", 0, max(0, len(held) - LAST_BYTES))
    return (held[:at], held[at + 1 :]) if at >= 0 else (b"", held)


def read_log(file: BinaryIO, name: str, year: int, rank: int | None, ends_at: float) -> LogReader:
    """A log, read."""
    reader = LogReader(name, year, rank, ends_at)
    reader.read(file)
    return reader
