"""What the text of the job's own lines says about a thread that stands at one of them."""

import re
from collections.abc import Iterable

from perfwatch.triage.history import History
from perfwatch.triage.words.frames import is_standard, short_name, show, tags, user_frame
from perfwatch.verdict import Place
from perfwatch_probes import readings as r

# What a regular expression is asked for. Much else is searched, split and matched: these count on the modules, and on what
# is called as a pattern is (its name says so, or is in capitals, as a constant's of the module).
EXPRESSIONS = frozenset("match fullmatch search findall finditer sub subn split".split())
OF_PATTERNS_ALONE = frozenset("fullmatch finditer subn".split())
MODULES = frozenset({"re", "regex"})
PATTERN_WORDS = MODULES | frozenset("pattern patterns pat regexp rx expr expression".split())

_BUILTINS = frozenset(
    "abs all any bool chr dict divmod enumerate float format frozenset getattr hash hex id int isinstance iter len list map max min "
    "next ord pow range repr reversed round set setattr slice sorted str sum tuple type zip".split()
)
# What else a loop may call that looks for a file or tries for its lock, between two looks.
_BESIDE_A_LOOK = frozenset(
    "sleep time monotonic perf_counter join Path print debug info warning is_set getpid encode open close write unlink remove".split()
)
# Calls that take a lock, or fail because the lock's file or folder is there already.
_LOCK_CALLS = frozenset("flock lockf fcntl O_EXCL mkdir makedirs symlink link touch".split())
_EXCLUSIVE_OPEN = "os.open"  # open() of a file to read it is no sign; os.open in a loop that sleeps is made for O_EXCL
TELLS = frozenset(
    "print info debug warning log strftime now format str int float round getpid".split()
)  # how it is going
TRAINS = frozenset({"backward", "step"})  # all of them are called in a loop that trains
STEPPED = re.compile(r"opt|adam|sgd|solver", re.IGNORECASE)  # what is stepped: no scheduler, environment or profiler
CONNECTING = frozenset("connect create_connection urlopen urlretrieve request recv fetch download".split())
ASKING = frozenset("get post put head send execute query read open call".split())  # of something remote, by its name:
# Tries that only ask whether something is there yet, or take a lock: their waits have other names.
ASKS = frozenset(
    "get get_nowait put put_nowait acquire poll wait join recv accept select open flock lockf fcntl mkdir symlink link touch"
    " stat result print info debug warning error exception format str int len sleep pop popleft popitem next".split()
)
LONGEST_REST_SECONDS = 3600.0  # before the next try: servers that limit their clients ask for minutes (Retry-After)
REMOTE = ("request", "session", "client", "http", "conn", "s3", "bucket", "redis", "cursor", "service", "api", "sock")


def line_of(history: History, frame: r.Frame | None) -> r.SourceLine | None:
    """The text of a frame's line, where it was read."""
    seen = history.latest(r.SourceLine, frame.file, frame.line) if frame is not None else None
    return seen.reading if seen else None


def place_of(history: History, told: str | None, pid: int, tid: int | None) -> Place | None:
    """The frame that ``show`` told of, in full, as the newest stack has it that shows it; the text of its line, if that was read."""
    threads = [(pid, tid)] if tid is not None else history.of(r.Stack, pid) if told else []
    for key in threads:
        for seen in reversed(history.series(r.Stack, *key)):
            for frame in seen.reading.frames:
                if show(frame) == told:
                    line = line_of(history, frame)
                    text = line.text if line is not None else None
                    return Place(
                        function=short_name(frame.function), file=frame.file, line=frame.line, source=text or None
                    )
    return None


def calling_line(history: History, stack: r.Stack) -> r.SourceLine | None:
    """The line that a thread stands at itself: a builtin or native call is made right there, no Python frame lies below."""
    frame = user_frame(stack)
    return line_of(history, frame) if frame is not None and stack.frames[0] == frame else None


def is_plain(history: History, frame: r.Frame) -> bool:
    """True if a frame is Python of the standard library, or at a line that calls nothing but builtins: no extension runs there."""
    line = line_of(history, frame)
    return is_standard(frame) or (line is not None and _BUILTINS.issuperset(line.calls))


def names(calls: Iterable[str]) -> frozenset[str]:
    """The last parts of dotted names: ``time.sleep`` is called as ``sleep`` by whoever imported it so."""
    return frozenset(call.rsplit(".", 1)[-1] for call in calls)


def looking(history: History, frame: r.Frame | None) -> range:
    """The lines of the loop around a frame's line where all that it does is to look for a file, or to try for its lock; else none."""
    line = line_of(history, frame)
    if line is None or line.loop_lines is None:
        return range(0)
    called = names(line.loop_calls)
    looks = bool(called & r.FILE_TESTS) or tries_for_a_lock(line)
    if not looks or "sleep" not in called or called - r.FILE_TESTS - _LOCK_CALLS - _BESIDE_A_LOOK - _BUILTINS:
        return range(0)
    return range(line.loop_lines[0], line.loop_lines[1] + 1)


def tries_for_a_lock(line: r.SourceLine) -> bool:
    """True if the loop around a line makes a call that takes a lock, or fails because its file or folder is there already."""
    return bool(names(line.loop_calls) & _LOCK_CALLS) or _EXCLUSIVE_OPEN in line.loop_calls


def asks_for_an_update(calls: Iterable[str]) -> bool:
    """True if one of these calls is an optimizer's step, by the name of what is stepped: it may be the program's own."""
    return any(name == "step" and STEPPED.search(of) for of, _, name in (call.rpartition(".") for call in calls))


def matches_expressions(calls: Iterable[str]) -> bool:
    """True if one of these calls applies a regular expression."""
    for receiver, _, called in (call.rpartition(".") for call in calls):
        owner = receiver.rpartition(".")[2]
        of_pattern = owner.isupper() or not PATTERN_WORDS.isdisjoint(owner.lower().split("_"))
        if called in OF_PATTERNS_ALONE or (called in EXPRESSIONS and of_pattern):
            return True
    return False


def lock_taken(line: r.SourceLine | None) -> str:
    """The last part of the name of the lock that a line takes: ``lock`` of ``with self.lock:`` or ``self.lock.acquire()``."""
    if line is None:
        return ""
    asked = [call.rpartition(".")[0] for call in line.calls if call.endswith(".acquire")]
    return next(iter(asked or line.within[:1]), "").rpartition(".")[2]


def next_try_seconds(history: History, thread: r.Thread | None, stack: r.Stack | None) -> float | None:
    """In how many seconds a thread that rests tries again what has failed, as the kernel knows; None where it does not, or in hours."""
    look = history.latest(r.Thread, thread.pid, thread.tid) if thread is not None else None
    if look is None or thread is None or thread.wait is None or thread.wait.kind != "sleep" or stack is None:
        return None
    left = thread.wait.remaining_seconds
    if left is None or left > LONGEST_REST_SECONDS or not retries(history, stack):
        return None
    return max(0.0, left - (history.at - look.at))


def retries(history: History, stack: r.Stack) -> bool:
    """True if a stack sleeps because what its loop tries has failed, or because the answer was a refusal."""
    if "retry" in tags(stack):
        return True
    line = calling_line(history, stack)
    if line is None or "sleep" not in names(line.calls):
        return False
    # A loop that asks and then rests may only be polite: the text must say that the sleep follows on a try that failed.
    return bool(names(line.retried_calls) - ASKS) or any(map(_connects, line.asked_calls))


def _connects(call: str) -> bool:
    owner, _, name = call.rpartition(".")
    return name in CONNECTING or (name in ASKING and any(word in owner.lower() for word in REMOTE))
