"""True if a thread moves: its own stack, run time, wake-ups and io over the last seconds, and what the kernel remembers.

Process-wide CPU time or output is not progress (a heartbeat thread writes in a deadlocked job), so everything here is per thread.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile
from math import inf

from perfwatch.triage.history import History, Seen, is_past, once
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES, STIRS_SHARE
from perfwatch.triage.shares.thresholds import BEYOND, MOSTLY, NOTABLE
from perfwatch.triage.words.frames import any_tag, is_user, short_name, tags
from perfwatch_probes import readings as r

# The trailing time over which a thread must be flat (measured: the first 0.3 s after onset still drain).
WINDOW_SECONDS = 5.0
FROZEN_SWITCHES_PER_SECOND = 1.5  # measured < 1 on blocked threads, 193 on waiters for the GIL
FAR_APART = 3.0  # times the window: on a crowded machine two looks at a thread lie seconds apart
SIGHTING_SECONDS = 0.9  # two looks count as two only so far apart
MOVED_SECONDS = 0.003  # of run time between two looks; a poll that times out uses 0.1 to 0.5 ms
MOVED_SHARE = 0.008  # of a core; a thread that waits for the GIL uses 0.6 %
TRY_SECONDS = 1e-3  # for a lock file, at most; measured: 0.35 to 0.55 ms where its owner is read from it
# One that waits for the GIL looks 200 times a second whether it may go on (sys.getswitchinterval), for 12 to 140 us each time.
GIL_LOOK_SECONDS, SWITCH_INTERVAL_SECONDS = 0.0002, 0.005
GIL_SWITCHES_PER_SECOND = (60.0, 400.0)  # measured 193/s at the default switch interval
GIL_WAIT_SECONDS = 0.02  # CPython re-asks every 5 ms; remaining time measured 1-2 ms
TORN_SHARE = NOTABLE  # stacks seen in fewer samples than this may be torn (measured: about 3 % of nonblocking dumps)
LULLS = BEYOND  # times the longest lull


@dataclass(frozen=True)
class Motion:
    """What one thread did over the window. None: not seen."""

    seconds: float  # between the first and the last look
    samples: int  # of its stack, in the wait that it is in now
    distinct: int  # different stacks over the window, rare (possibly torn) ones left out
    steady_share: float  # of the commonest among the samples, 0..1
    run_share: float | None
    delay_share: float | None  # runnable but not running
    switches_per_second: float | None
    ran_ago_seconds: float | None
    io_calls: int | None
    state: str | None
    woken: bool = False  # from a wait without a timeout: somebody let it go on
    kernel_share: float | None = None  # of its CPU time, spent in system calls and page faults

    @property
    def wanted_share(self) -> float:
        """Of a core: what it ran, and what it would have run had it been given one; 0 where neither was seen."""
        return (self.run_share or 0.0) + (self.delay_share or 0.0)

    @property
    def asleep_share(self) -> float | None:
        """Share of the time that it neither ran nor waited for a core; None where it is not known."""
        return None if self.run_share is None else max(0.0, 1.0 - self.wanted_share)

    @property
    def frozen(self) -> bool | None:
        """True: nothing of it moves. None: not looked at long enough."""
        if self.run_share is not None and self.run_share > STIRS_SHARE:
            return False
        if self.switches_per_second is not None and self.switches_per_second > FROZEN_SWITCHES_PER_SECOND:
            return False
        if self.distinct > 1 or (self.io_calls or 0) > 0 or self.woken:
            return False
        if self.ran_ago_seconds is not None and self.ran_ago_seconds >= WINDOW_SECONDS:
            return True  # the kernel remembers that it has not run for so long
        if self.seconds < SIGHTING_SECONDS or self.run_share is None:
            return None
        return True

    @property
    def in_vain(self) -> bool:
        """True if it wakes as often as one that asks for the GIL, and does nothing each time."""
        low, high = GIL_SWITCHES_PER_SECOND
        often = self.switches_per_second is not None and low <= self.switches_per_second <= high
        return often and self.run_share is not None and self.run_share <= MOVED_SHARE


def stack_key(stack: r.Stack) -> tuple[tuple[str, str, int], ...]:
    """What makes two stacks the same: every function, and the lines of the program's own frames."""
    return _key(stack.frames)


@lru_cache(maxsize=4096)
def _key(frames: tuple[r.Frame, ...]) -> tuple[tuple[str, str, int], ...]:
    return tuple((short_name(f.function), f.file, f.line if is_user(f) else 0) for f in frames)


def stacks_of(history: History, pid: int, tid: int, seconds: float = WINDOW_SECONDS) -> list[Seen[r.Stack]]:
    """The stacks of a thread over the last seconds; failing any, the newest one."""
    recent = [seen for seen in history.series(r.Stack, pid, tid, seconds=seconds) if seen.reading.frames]
    if recent:
        return recent
    return [seen for seen in history.series(r.Stack, pid, tid) if seen.reading.frames][-1:]


def whole(stacks: list[Seen[r.Stack]]) -> list[Seen[r.Stack]]:
    """Those that reach down to where the thread began: a torn one may end anywhere. All of them, where most begin differently."""
    begun = Counter[tuple[str, str]]()
    for one in stacks:
        begun[_outermost(one.reading)] += one.reading.samples
    first, samples = begun.most_common(1)[0] if begun else (("", ""), 0)
    if samples < MOSTLY * sum(begun.values()):
        return stacks
    return [one for one in stacks if _outermost(one.reading) == first]


def _outermost(stack: r.Stack) -> tuple[str, str]:
    return (stack.frames[-1].function, stack.frames[-1].file) if stack.frames else ("", "")


@once
def dominant(history: History, pid: int, tid: int, seconds: float = WINDOW_SECONDS) -> Seen[r.Stack] | None:
    """The stack that the thread was most often seen in; of equals, the newest."""
    seen = [one for one in stacks_of(history, pid, tid, seconds) if not is_past(history, one)]
    if not seen:
        return None
    weights, newest = weights_of(seen), {stack_key(one.reading): one for one in seen}
    return newest[max(weights, key=lambda key: (weights[key], newest[key].at))]


@once
def motion(history: History, pid: int, tid: int, seconds: float = WINDOW_SECONDS) -> Motion:
    """Everything that moved about one thread in the last seconds."""
    threads = _two_looks(history, pid, tid, seconds)
    reach = max(seconds, history.at - threads[0].at) if threads else seconds
    stacks = _stands(history, pid, tid, seconds, threads)
    weights = weights_of(stacks)
    standing = weights_of([one for one in stacks if not is_past(history, one)])
    samples = sum(weights.values())
    common = [key for key, weight in weights.items() if weight >= max(2, TORN_SHARE * samples)] or list(weights)[:1]
    looks = (
        [one.at for one in threads] + [one.at for one in stacks] + [one.at - one.reading.span_seconds for one in stacks]
    )
    last = threads[-1] if threads else None
    ran_ago = None
    if last is not None and last.reading.ran_ago_seconds is not None and last.reading.state != "R":
        ran_ago = last.reading.ran_ago_seconds
    computed, in_kernel = (_rate(history, pid, tid, field, reach) for field in ("cpu_seconds", "system_seconds"))
    return Motion(
        seconds=max(looks) - min(looks) if looks else 0.0,
        samples=sum(standing.values()),
        distinct=len(common) if samples else 0,
        steady_share=max(standing.values()) / sum(standing.values()) if standing else 0.0,
        run_share=_rate(history, pid, tid, "run_seconds", reach),
        delay_share=_rate(history, pid, tid, "run_delay_seconds", reach),
        switches_per_second=_rate(history, pid, tid, "voluntary_switches", reach),
        ran_ago_seconds=ran_ago,
        io_calls=_io_calls(threads),
        state=last.reading.state if last else None,
        woken=any(_woken(earlier.reading, later.reading) for earlier, later in pairwise(threads)),
        kernel_share=in_kernel / computed if computed and in_kernel is not None else None,
    )


def weights_of(stacks: list[Seen[r.Stack]]) -> Counter[tuple[tuple[str, str, int], ...]]:
    """Samples by stack, without the empty ones."""
    weights: Counter[tuple[tuple[str, str, int], ...]] = Counter()
    for one in stacks:
        if one.reading.frames:
            weights[stack_key(one.reading)] += one.reading.samples
    return weights


def _two_looks(history: History, pid: int, tid: int, seconds: float) -> list[Seen[r.Thread]]:
    """What was seen of a thread over the last seconds; where looks are far apart, the last two all the same."""
    recent = history.series(r.Thread, pid, tid, seconds=seconds)
    return recent if len(recent) >= 2 else history.series(r.Thread, pid, tid, seconds=FAR_APART * seconds)[-2:]


def _stands(history: History, pid: int, tid: int, seconds: float, threads: list[Seen[r.Thread]]) -> list[Seen[r.Stack]]:
    """The stacks of the last seconds, and the older ones since which the thread has not run: it stands there yet.

    Of an older one every sample must be of the time since: in its first the thread may have come to where it stands.
    """
    last = threads[-1] if threads else None
    if last is None or last.reading.ran_ago_seconds is None or last.reading.state == "R":
        return history.series(r.Stack, pid, tid, seconds=seconds)
    ran_at = last.at - last.reading.ran_ago_seconds
    seen = history.series(r.Stack, pid, tid, seconds=max(seconds, history.at - ran_at))
    return [one for one in seen if one.at >= history.at - seconds or one.at - one.reading.span_seconds >= ran_at]


@dataclass(frozen=True)
class Moves:
    """When a thread that waits was seen to go on: how often, how long ago, and the longest lull between two times."""

    times: int
    ago_seconds: float | None
    longest_lull_seconds: float

    @property
    def recurrent(self) -> bool:
        """True if it goes on again and again, and has not paused for much longer than before."""
        if self.times < 2 or self.ago_seconds is None:
            return False
        return self.ago_seconds < LULLS * self.longest_lull_seconds + SIGHTING_SECONDS


@once
def moves(history: History, pid: int, tid: int) -> Moves:
    """Moments at which the thread ran for more than a timed wait's look at the clock, wrote much, or woke from a wait without end."""
    seen = history.series(r.Thread, pid, tid)
    since = _asks_for_a_file_since(history, pid, tid)
    at = [later.at for earlier, later in pairwise(seen) if _moved(earlier, later, asks=earlier.at >= since)]
    lulls = [later - earlier for earlier, later in pairwise(at)]
    return Moves(len(at), history.at - at[-1] if at else None, max(lulls, default=0.0))


def _asks_for_a_file_since(history: History, pid: int, tid: int) -> float:
    """Since when every stack of a thread is in a library that tries for a lock file, sleeps a little and tries again."""
    there = takewhile(lambda one: "file_lock" in tags(one.reading), reversed(history.series(r.Stack, pid, tid)))
    return min((one.at - one.reading.span_seconds for one in there), default=float("inf"))


def _moved(earlier: Seen[r.Thread], later: Seen[r.Thread], *, asks: bool) -> bool:
    before, after = earlier.reading, later.reading
    written = (after.written_chars or 0) - (before.written_chars or 0)  # what polls a file reads it again and again
    if before.written_chars is not None and written > ARRIVING_BYTES * max(later.at - earlier.at, SIGHTING_SECONDS):
        return True
    if before.run_seconds is not None and after.run_seconds is not None:
        between = later.at - earlier.at
        looks = min(_gil_looks(before, after), GIL_SWITCHES_PER_SECOND[1] * between)
        tries = (after.voluntary_switches or 0) - (before.voluntary_switches or 0) if asks else 0
        looking = max(MOVED_SECONDS, MOVED_SHARE * between, looks * GIL_LOOK_SECONDS, tries * TRY_SECONDS)
        if after.run_seconds - before.run_seconds > looking:
            return True
    return _woken(before, after)


def _gil_looks(before: r.Thread, after: r.Thread) -> int:
    """How often a thread looked whether it gets the GIL: wake-ups from waits that are no longer than one such wait."""
    # One that is met between two such waits is on its way into the next; had it gone on, it would not have woken so often.
    waits = [one.wait for one in (before, after) if one.state != "R"]
    short = all(one is not None and one.kind == "futex" and not one.forever for one in waits)
    if not short or any(one is None or (one.remaining_seconds or 0.0) > SWITCH_INTERVAL_SECONDS for one in waits):
        return 0
    return (after.voluntary_switches or 0) - (before.voluntary_switches or 0)


def _woken(before: r.Thread, after: r.Thread) -> bool:
    forever = before.wait is not None and after.wait is not None and before.wait.forever and after.wait.forever
    return forever and (after.voluntary_switches or 0) > (before.voluntary_switches or 0)


def _rate(history: History, pid: int, tid: int, field: str, seconds: float) -> float | None:
    grown = history.growth(r.Thread, pid, tid, of=lambda reading: getattr(reading, field), seconds=seconds)
    if grown is None or grown[1] < SIGHTING_SECONDS / 2:
        return None
    return grown[0] / grown[1]


def _io_calls(threads: list[Seen[r.Thread]]) -> int | None:
    calls = [
        (one.reading.read_calls or 0) + (one.reading.write_calls or 0)
        for one in threads
        if one.reading.read_calls is not None or one.reading.write_calls is not None
    ]
    return calls[-1] - calls[0] if len(calls) >= 2 else None


@once
def python_threads(history: History, pid: int) -> list[int]:
    """Threads of a process in which Python frames were seen, and that are still there as far as is known.

    A stack without a thread's number is of another process: what vfork has made has its parent's memory, and none of its threads.
    A thread that Python knows may have no frame (autograd's engine on a CPU): it is native.
    """
    threads = (key for key in history.of(r.Stack, pid) if key[1] and not has_ended(history, *key))
    return sorted(key[1] for key in threads if any(one.reading.frames for one in history.series(r.Stack, *key)))


@once
def gil_passed_at(history: History, pid: int, tid: int) -> float:
    """When another thread of its process was last seen to have got the GIL that it asked for: it rests since, or has written."""
    passed = -inf
    for other in python_threads(history, pid):
        for before, after in pairwise(history.series(r.Thread, pid, other)) if other != tid else ():
            wait = after.reading.wait
            rests = after.reading.state == "S" and wait is not None and not asks_for_gil(wait)
            wrote = before.reading.written_chars != after.reading.written_chars
            if after.at > passed and asks_for_gil(before.reading.wait) and (rests or wrote):
                passed = after.at
    return passed


def asks_for_gil(wait: r.Wait | None) -> bool:
    """True if a wait is as short as one for the GIL, which is asked for again and again."""
    left = wait.remaining_seconds if wait is not None and wait.kind == "futex" else None
    return left is not None and left <= GIL_WAIT_SECONDS


def has_ended(history: History, pid: int, tid: int) -> bool:
    """True if a thread was looked for and not found."""
    seen = history.latest(r.Thread, pid, tid)
    return seen is not None and seen.reading.state == "X"


def tags_seen(history: History, pid: int, tid: int, seconds: float | None = None) -> frozenset[str]:
    """The tags of every stack that a thread was seen in over the last seconds (default: ever)."""
    found: set[str] = set()
    for one in history.series(r.Stack, pid, tid, seconds=seconds):
        found |= tags(one.reading)
    return frozenset(found)


@once
def was_at(history: History, pid: int, tid: int, *any_of: str) -> bool:
    """True if a thread was ever seen in a stack with one of these tags; the newest is looked at first, and mostly tells.

    Not while it imported something: an import of torch passes through its optimizers and loaders.
    """
    seen = (tags(one.reading) for one in reversed(history.series(r.Stack, pid, tid)))
    return any(any_tag(found, *any_of) and "import" not in found for found in seen)
