"""When a thread saves, and saves that come back between steps."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import was_at
from perfwatch.triage.moving.periods import COMES_BACK, LONG_SECONDS, recurrent
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.own_work import calls_at
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.thresholds import LATELY_SECONDS, MOSTLY, NOTABLE
from perfwatch.triage.slowness import LOST_SHARE
from perfwatch.triage.words.code import calling_line, names
from perfwatch.triage.words.frames import any_tag, inner_frames, of_torch, short_name, tags, user_frame, user_frames
from perfwatch_probes.readings import Stack, Thread

SAVING_NAME = re.compile(r"(^|_)(save|dump|ckpt|checkpoint|snapshot)")
SAVING_CLASS = re.compile(r"(Checkpoint|Ckpt|Snapshot|Saver)[^.]*\.")  # named from Python 3.11 on
SAVES = frozenset("save save_file savez dump".split())
EXECUTES = frozenset("execute executemany executescript".split())
CHANGES = re.compile(r"\b(insert|update|replace|delete)\b", re.IGNORECASE)  # statements of SQL
SYNCS = frozenset("fsync fdatasync sync".split())
COPIES = frozenset("clone cpu deepcopy copy".split())  # of what state_dict() gives, which are references
# Per second: an audit trail or a log that is synced line by line mostly stays far below. Per call: what is buffered comes in 8 KiB and
# more, lines of a log that are flushed one by one do not.
MUCH_BYTES, LARGE_BYTES = 2**18, 2**12


@dataclass(frozen=True)
class Saves:
    """Separate saves within a window of samples, and the share of their whole periods that they took."""

    seen: Profile
    times: int
    lost: float


def recurring(case: Case, rank: Member, seen: Profile, saving: Callable[[Stack], bool]) -> Saves | None:
    """Saves that come back and cost a good part of the time: many small ones in a short window, or a few long ones in two minutes.

    The time from save to save counts: a window of any other length holds now one more of them, now one less. A job whose steps are late
    is sampled more than one that is well: in a long window the time that saves were seen to take counts as well.
    """
    for window in (seen, case.profile(rank, LONG_SECONDS)):
        times, lost = recurrent(case, rank, window, saving)
        if window.seconds >= LATELY_SECONDS:
            took = sum(one.reading.span_seconds for one in window.sights if saving(one.reading))
            lost = min(lost, took / window.seconds)
        if times >= COMES_BACK and lost >= LOST_SHARE:
            return Saves(window, times, lost)
    return None


def in_save(case: Case, stack: Stack) -> bool:
    """True if a stack is in a save, by what it calls or by the name of a function of the program's own."""
    return saves(case, stack) or (is_named_so(stack) and writes_much(case, stack) is not False)


def is_named_so(stack: Stack) -> bool:
    """True if a function of the program's own says by its name that it saves: people pack or encrypt checkpoints themselves."""
    if any_tag(tags(stack), *TRAINING_TAGS, "fetch"):
        return False  # activation checkpointing; a function that trains and saves
    functions = [frame.function for frame in user_frames(stack)]
    return any(SAVING_NAME.search(short_name(one).lower()) or SAVING_CLASS.search(one) for one in functions)


def saves(case: Case, stack: Stack) -> bool:
    """True if a stack is in a save: library frames, or a line of the program that calls save or fsync."""
    if any_tag(found := tags(stack), "save", "restore"):
        return "restore" not in found
    line = calling_line(case.history, stack)
    if line is None or not (called := names(line.calls)) & (SAVES | SYNCS):
        return False
    # To pickle many objects takes arithmetic, too.
    plain = bool(called & SAVES) and not rather_computes(case, stack, line.calls)
    return plain or writes_much(case, stack) is True


def writes_much(case: Case, stack: Stack) -> bool | None:
    """True if a thread writes as much as a checkpoint has, and in pieces as large; None where it is not known."""
    written = case.history.growth(Thread, stack.pid, stack.tid, of=lambda thread: thread.written_chars)
    calls = case.history.growth(Thread, stack.pid, stack.tid, of=lambda thread: thread.write_calls)
    if written is None:
        return None
    lines = calls is not None and calls[0] and written[0] < LARGE_BYTES * calls[0]
    return not lines and written[0] >= MUCH_BYTES * written[1]


def copying(case: Case, seen: Profile) -> Callable[[Stack], bool]:
    """What tells whether a stack copies the model: it copies parameters, is at a line that does, or copies a state_dict."""
    lines = {user_frame(one.reading) for one in seen.sights if "model_copy" in tags(one.reading)}

    def holds(stack: Stack) -> bool:
        if "model_copy" in tags(stack):
            return True
        if not stack.frames or any_tag(tags(stack), *TRAINING_TAGS):
            return False
        called = calls_at(case.history, stack)
        return user_frame(stack) in lines or ("state_dict" in called and bool(called & COPIES))

    return holds


def syncs_little(case: Case, stack: Stack) -> bool:
    """True if a stack is in a line that forces a little to the disk."""
    line = calling_line(case.history, stack)
    return line is not None and bool(names(line.calls) & SYNCS) and writes_much(case, stack) is False


def stores_rows(case: Case, stack: Stack) -> bool:
    """True if a training thread is in a line that changes a database or commits to it: each transaction is forced to the disk."""
    line = calling_line(case.history, stack)
    if line is None or not was_at(case.history, stack.pid, stack.tid, "backward", "optimizer"):
        return False  # filling one before training is preparation
    if "commit" in names(line.calls):
        return True
    if names(line.calls) & EXECUTES:
        return bool(CHANGES.search(line.text))
    managed = {f"{one}.{call}" for one in line.within for call in EXECUTES}
    return line.text.lstrip().startswith("with ") and not managed.isdisjoint(line.loop_calls)


# What a line calls besides to say something: none of them takes a while.
OUTPUT_CALLS = frozenset(
    "print write writelines flush info debug warning error log save dump dumps format str repr int float round len join item"
    " tolist keys values items get time perf_counter monotonic strftime now state_dict cpu detach open Path basename dict list"
    " range min max sum zip enumerate isinstance getattr".split()
)


def rather_computes(case: Case, stack: Stack, calls: Collection[str]) -> bool:
    """True if a line calls something that may compute, and its thread runs nearly all of its time outside of the kernel.

    Where frames of another library than torch lie below the line, they do it: a table that is laid out to be printed.
    """
    if names(calls) <= OUTPUT_CALLS or not all(map(of_torch, inner_frames(stack))):
        return False
    ran = case.history.rate(Thread, stack.pid, stack.tid, of=lambda one: one.run_seconds, seconds=LATELY_SECONDS)
    system = case.history.rate(Thread, stack.pid, stack.tid, of=lambda one: one.system_seconds, seconds=LATELY_SECONDS)
    return ran is not None and system is not None and ran >= MOSTLY and system < NOTABLE * ran
