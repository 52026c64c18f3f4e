"""Checkpoints take a large part of the time.

What it means
    Steps are as fast as ever, but every so often the training thread stops to save.

How it is recognised
    Stretches of save frames or fsync (or of a function that says by its name that it saves) come back between steps, in twenty
    seconds or in two minutes, and add up to a good part of the time.

What it is mistaken for
    ``checkpointing``: one long save. ``regressed``: the median moved.

What to do next
    Save less often, asynchronously (``torch.distributed.checkpoint.async_save``), or to a faster disk.
"""

import re
from collections.abc import Callable
from functools import partial

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.code import calling_line, names
from perfwatch.triage.frames import any_tag, short_name, show, tags, user_frames
from perfwatch.triage.job import Member
from perfwatch.triage.profile import TRAINING_TAGS, Profile
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import LOST_SHARE, WINDOW_SECONDS, certainty, slow, working
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("slow_checkpoint", "slow", "storage", (Stack,))

LONG_SECONDS = 120.0  # in which saves of a quarter of a minute come back
NAMED = 0.82  # told by a name alone
SAVING_NAME = re.compile(r"(^|_)(save|ckpt|checkpoint|snapshot)")
MOSTLY = 0.5  # of a phase
STEPS = ("backward", "optimizer", "forward")
COMES_BACK = 2  # separate saves within the window
SAVES = frozenset("save save_file savez dump".split())
SYNCS = frozenset("fsync fdatasync sync".split())
MUCH_BYTES = 2**18  # per second: an audit trail or a log that is synced line by line stays far below


def judge(case: Case) -> Outcome:
    """Fires when saves come back between steps and cost a good part of the time."""
    for rank, seen in working(case):
        found = _of(case, rank, seen)
        if found is not None:
            return found
    return None


def _of(case: Case, rank: Member, seen: Profile) -> Outcome:
    return _found(case, rank, seen) or _found(case, rank, case.profile(rank, LONG_SECONDS))


def _found(case: Case, rank: Member, seen: Profile) -> Outcome:
    """Separate saves in these samples: a short window shows many small ones, a long one a few that take most of a minute."""
    saving = partial(in_save, case)
    lost = min(seen.share_where(saving), _share_of_time(seen, saving))
    times = _separate(seen, saving)
    if lost < LOST_SHARE or times < COMES_BACK:
        return None
    frame = seen.top_line(saving)
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        confidence=certainty(lost) if seen.share_where(partial(saves, case)) >= LOST_SHARE else NAMED,
        summary=f"checkpoints take {lost:.0%} of the time: at least {times} saves in {seen.seconds:.0f} s, at {show(frame)}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "saves again and again",
                f"in {lost:.0%} of {seen.samples} samples, {times} times with other work between",
                "below 5 %",
            ),
        ),
        alternatives=(Alternative(cause="regressed", refuted_by="the time goes into saves, not into the steps"),),
        next=("save less often, or asynchronously",),
    )


def _separate(seen: Profile, saving: Callable[[Stack], bool]) -> int:
    """How many saves there were: a sample of training lies between two of them. One checkpoint may have many files."""
    times, trained = 0, True
    for one in seen.sights:
        if saving(one.reading):
            times += trained
            trained = False
        elif any_tag(tags(one.reading), *STEPS):
            trained = True
    return times if seen.seen(*STEPS) else 0


def _share_of_time(seen: Profile, saving: Callable[[Stack], bool]) -> float:
    """Share of the window that saves were seen to take: a job whose steps are late is sampled more than one that is well."""
    if seen.seconds < WINDOW_SECONDS:
        return 1.0
    return sum(one.reading.span_seconds for one in seen.sights if saving(one.reading)) / seen.seconds


def comes_back(case: Case, rank: Member, seen: Profile) -> bool:
    """Whether a phase of a rank that is mostly a save is one of several that are told as what they cost."""
    if seen.share_where(partial(in_save, case)) < MOSTLY:
        return False
    return any(one.pid == rank.pid and _of(case, one, window) is not None for one, window in working(case))


def in_save(case: Case, stack: Stack) -> bool:
    """Whether a stack is in a save, by what it calls or by the name of a function of the program's own."""
    return saves(case, stack) or (is_named_so(stack) and writes_much(case, stack))


def is_named_so(stack: Stack) -> bool:
    """Whether a function of the program's own says by its name that it saves: people pack or encrypt checkpoints themselves."""
    if any_tag(tags(stack), *TRAINING_TAGS, "fetch"):
        return False  # activation checkpointing; a function that trains and saves
    return any(SAVING_NAME.search(short_name(frame.function).lower()) for frame in user_frames(stack))


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
