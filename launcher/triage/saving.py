"""When a thread saves, and saves that come back between steps: shared by the rules about checkpoints and those that must not blame them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.code import calling_line, names
from perfwatch.triage.frames import any_tag, short_name, tags, user_frames
from perfwatch.triage.job import Member
from perfwatch.triage.profile import TRAINING_TAGS, Profile
from perfwatch.triage.slowness import LOST_SHARE, WINDOW_SECONDS, working

LONG_SECONDS = 120.0  # in which saves of a quarter of a minute come back
SAVING_NAME = re.compile(r"(^|_)(save|dump|ckpt|checkpoint|snapshot)")
SAVING_CLASS = re.compile(r"(Checkpoint|Ckpt|Snapshot|Saver)[^.]*\.")  # named from Python 3.11 on
MOSTLY = 0.5  # of a phase
STEPS = ("backward", "optimizer", "forward")
COMES_BACK = 2  # separate saves within the window
SAVES = frozenset("save save_file savez dump".split())
SYNCS = frozenset("fsync fdatasync sync".split())
LONG_STEP = 3.0  # times the usual one
MUCH_BYTES = 2**18  # per second: an audit trail or a log that is synced line by line stays far below


@dataclass(frozen=True)
class Saves:
    """Separate saves within a window of samples, and the share of their whole periods that they took."""

    seen: Profile
    times: int
    lost: float


def recurrent_saves(case: Case, rank: Member, seen: Profile) -> Saves | None:
    """Saves that come back and cost a good part of the time: many small ones in a short window, or a few long ones in two minutes.

    The time from save to save counts: a window of any other length holds now one more of them, now one less.
    """
    saving = partial(in_save, case)
    for window in (seen, case.profile(rank, LONG_SECONDS)):
        stretches = _separate(window, saving)
        if len(stretches) < COMES_BACK:
            continue
        periods = _periods(window, stretches)
        lost = min(window.share_where(saving), periods.share_where(saving), _share_of_time(window, saving))
        lost = min(lost, _share_of_long_steps(case, rank, len(stretches)))
        if lost >= LOST_SHARE:
            return Saves(window, len(stretches), lost)
    return None


def comes_back(case: Case, rank: Member, phase: Profile) -> bool:
    """Whether a phase of a rank that is mostly a save is one of several that are told as what they cost."""
    if phase.share_where(partial(in_save, case)) < MOSTLY:
        return False
    return any(one.pid == rank.pid and recurrent_saves(case, one, seen) is not None for one, seen in working(case))


def _separate(seen: Profile, saving: Callable[[Stack], bool]) -> list[tuple[int, int]]:
    """The first and the last sample of each save: one of training lies between two of them. One checkpoint may have many files."""
    found: list[tuple[int, int]] = []
    trained = True
    for number, one in enumerate(seen.sights):
        if saving(one.reading):
            first = number if trained else found[-1][0]
            found[len(found) - (not trained) :] = [(first, number)]
            trained = False
        elif any_tag(tags(one.reading), *STEPS):
            trained = True
    return found if seen.seen(*STEPS) else []


def _periods(seen: Profile, stretches: list[tuple[int, int]]) -> Profile:
    """From the begin of the first save to that of the last; where the first was under way when it was first looked, end to end."""
    (begin, end), (last_begin, last_end) = stretches[0], stretches[-1]
    whole = seen.sights[begin:last_begin]
    if begin == 0 and last_end < len(seen.sights) - 1:
        whole = seen.sights[end + 1 : last_end + 1]
    return Profile(whole, whole[-1].at - whole[0].at)


def _share_of_time(seen: Profile, saving: Callable[[Stack], bool]) -> float:
    """Share of the window that saves were seen to take: a job whose steps are late is sampled more than one that is well."""
    if seen.seconds < WINDOW_SECONDS:
        return 1.0
    return sum(one.reading.span_seconds for one in seen.sights if saving(one.reading)) / seen.seconds


def _share_of_long_steps(case: Case, rank: Member, saves_seen: int) -> float:
    """What long steps cost beyond the usual ones, from the first of them to the last: saves cost no more, where each is in one.

    Steps are counted all the time, samples are taken now and then: few of them hold now more of a save, now less. 1 where the
    steps say nothing: none are counted, or a save belongs to each.
    """
    steps = case.steps(rank, LONG_SECONDS)
    usual = (steps.median_seconds if steps is not None else None) or 0.0
    if steps is None or not usual:
        return 1.0
    late = [number for number, one in enumerate(steps.intervals) if one >= LONG_STEP * usual]
    if not late or len(late) < saves_seen - 1:
        return 1.0
    # From end to end; where one of the saves is still under way, from begin to begin.
    whole = steps.intervals[late[0] + 1 : late[-1] + 1] if len(late) >= saves_seen else steps.intervals[late[0] :]
    return sum(one - usual for one in whole if one >= LONG_STEP * usual) / sum(whole)


def in_save(case: Case, stack: Stack) -> bool:
    """Whether a stack is in a save, by what it calls or by the name of a function of the program's own."""
    return saves(case, stack) or (is_named_so(stack) and writes_much(case, stack))


def is_named_so(stack: Stack) -> bool:
    """Whether a function of the program's own says by its name that it saves: people pack or encrypt checkpoints themselves."""
    if any_tag(tags(stack), *TRAINING_TAGS, "fetch"):
        return False  # activation checkpointing; a function that trains and saves
    return any(
        SAVING_NAME.search(short_name(frame.function).lower()) or SAVING_CLASS.search(frame.function)
        for frame in user_frames(stack)
    )


def saves(case: Case, stack: Stack) -> bool:
    """Whether a stack is in a save: library frames, or a line of the program that calls save or fsync."""
    if "save" in tags(stack):
        return True
    line = calling_line(case.history, stack)
    called = names(line.calls) if line is not None else frozenset()
    return bool(called & SAVES) or (bool(called & SYNCS) and writes_much(case, stack))


def writes_much(case: Case, stack: Stack) -> bool:
    """Whether a thread writes as much as a checkpoint has; what is not known may be much."""
    rate = case.history.rate(Thread, stack.pid, stack.tid, of=lambda thread: thread.written_chars)
    return rate is None or rate >= MUCH_BYTES


def syncs_little(case: Case, stack: Stack) -> bool:
    """Whether a stack is in a line that forces a little to the disk."""
    line = calling_line(case.history, stack)
    return line is not None and bool(names(line.calls) & SYNCS) and not writes_much(case, stack)
