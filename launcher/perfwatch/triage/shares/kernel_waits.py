"""What the training thread waits for in the kernel at lines of the program's own: stacks say where it is, and threads what for.

The two are read at different moments. A wait that is known to have lasted since a sample was taken belongs to it; else the sample that
is nearest in time is taken.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.own_work import rests
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import ENOUGH_SAMPLES, LATELY_SECONDS, MUCH, TWICE
from perfwatch.triage.words.code import line_of, retries
from perfwatch.triage.words.frames import tags, user_frame
from perfwatch_probes.readings import Descriptor, Frame, SourceLine, Stack, Thread

NEAR_SECONDS = 0.3  # of a look, where a sample belongs to it
WITHIN = frozenset({"profiler", "ssl", "selector", "file_lock"})  # tags of what only waits, for whichever work


@dataclass(frozen=True)
class KernelWaits:
    """Samples of a training thread at the lines where it was seen in waits of some kind."""

    rank: Member
    seen: Profile
    share: float  # of its time
    frame: Frame  # where most of them are
    looks: tuple[Thread, ...]  # in such a wait


def kernel_waits(
    case: Case, rank: Member, holds: Callable[[Thread], bool], fits: Callable[[Stack], bool] = lambda _: True
) -> KernelWaits | None:
    """The waits of a rank's training thread for which something holds, at stacks that fit and are of no known work; None if few."""
    tid, seen = case.progress[rank.pid].thread, case.profile(rank, LATELY_SECONDS)
    looks = case.history.series(Thread, rank.pid, tid, seconds=LATELY_SECONDS)
    waiting = [one for one in looks if holds(one.reading)]
    if seen.samples < ENOUGH_SAMPLES or len(waiting) < TWICE:
        return None
    at: Counter[Frame] = Counter(frame for one in waiting if (frame := _stood_at(seen, one)) is not None)
    places = {frame for frame, times in at.items() if at.total() >= TWICE and times >= MUCH * len(waiting)}

    lines = [line for one in places if (line := line_of(case.history, one)) is not None and line.retried_calls]

    def there(stack: Stack) -> bool:
        frame = user_frame(stack)
        stands = frame in places or any(_is_tried(line_of(case.history, frame), one) for one in lines)
        return stands and _only_waits(stack) and fits(stack)

    frame = seen.top_line(there)
    if frame is None:
        return None
    return KernelWaits(rank, seen.where(there), seen.share_where(there), frame, tuple(one.reading for one in waiting))


def _stood_at(seen: Profile, look: Seen[Thread]) -> Frame | None:
    """Where the thread stood at a look."""
    since = look.at - max(NEAR_SECONDS, look.reading.ran_ago_seconds or 0.0)
    near = [
        one for one in seen.sights if one.at - one.reading.span_seconds <= look.at + NEAR_SECONDS and one.at >= since
    ]
    nearest = min(near, key=lambda one: abs(one.at - look.at), default=None)
    return user_frame(nearest.reading) if nearest is not None and _only_waits(nearest.reading) else None


def _is_tried(line: SourceLine | None, rest: SourceLine) -> bool:
    """True if a line is what a loop tries that sleeps at another line when the try has failed."""
    if line is None or rest.loop_lines is None or line.file != rest.file:
        return False
    within = rest.loop_lines[0] <= line.line <= rest.loop_lines[1]
    return within and not set(rest.retried_calls).isdisjoint(line.calls)


def _only_waits(stack: Stack) -> bool:
    """True if a stack stands at a line of the program's own that calls native code, or in library code that does nothing but wait."""
    found = tags(stack)
    return (
        bool(stack.frames) and found <= WITHIN and (bool(found - {"profiler"}) or stack.frames[0] == user_frame(stack))
    )


@dataclass(frozen=True)
class FileLock:
    """A lock on a file that others hold again and again while a training thread waits for it."""

    waits: KernelWaits
    path: str
    holders: tuple[int, ...]  # PIDs
    sightings: int


def at_file_lock(case: Case, rank: Member) -> FileLock | None:
    """The lock on a file that a rank waits for: in the kernel, or in sleeps between tries while another process has the file locked.

    What a database sleeps for in its own code, between two tries for its lock, is no line of the program that sleeps.
    """
    return case.history.once(("at file lock", rank.pid), lambda: _at_file_lock(case, rank))


def _at_file_lock(case: Case, rank: Member) -> FileLock | None:
    held: Counter[tuple[str, int]] = Counter()
    for key in case.history.of(Descriptor, rank.pid):
        for one in case.history.series(Descriptor, *key, seconds=LATELY_SECONDS):
            held.update((one.reading.target, pid) for pid in one.reading.lock_holders if pid != rank.pid)

    def fits(stack: Stack) -> bool:
        return not rests(case.history, stack) or retries(case.history, stack)

    waits = kernel_waits(case, rank, _for_a_lock, fits) if held else None
    if waits is None:
        return None
    path = held.most_common(1)[0][0][0]
    return FileLock(waits, path, tuple(sorted(pid for target, pid in held if target == path)), held.total())


def _for_a_lock(look: Thread) -> bool:
    return look.wait is not None and look.wait.kind in ("lock", "sleep")
