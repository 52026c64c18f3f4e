"""Training writes: checkpoints, copies of the model, output."""

from dataclasses import dataclass, replace
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.periods import LONG_SECONDS, recurrent
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares import budget
from perfwatch.triage.shares.budget import WRITING, Bin, is_in
from perfwatch.triage.shares.kernel_waits import at_file_lock
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import CERTAIN, HIGH, LATELY_SECONDS, LOST_SHARE, MOSTLY, TWICE
from perfwatch.triage.slowness import (
    Facts,
    Line,
    Phase,
    Saw,
    certainty,
    phases,
    repeated,
    samples,
    slow,
    working,
    worst,
)
from perfwatch.triage.words.code import TRAINS, calling_line, names, retries
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import Host, Stack, Thread

SLOW_CHECKPOINT = Cause("slow_checkpoint", "slow", "storage", (Stack,))
CHECKPOINTING = Cause("checkpointing", "busy", "user_code", (Thread, Stack))
SLOW_OUTPUT = Cause("slow_output", "slow", "user_code", (Stack, Thread))

SAVED = Line(
    SLOW_CHECKPOINT,
    "checkpoints take {lost:.0%} of the time: at least {kept.times} saves in {kept.seen.seconds:time}, at {at}",
    (
        Saw(
            "stack",
            "saves again and again",
            "in {lost:.0%} of {kept.seen.samples} samples, {kept.times} times with other work between",
            "below 5 %",
        ),
    ),
    (("regressed", "the time goes into saves, not into the steps"),),
    ("save less often, or asynchronously",),
)
COPIED = Line(
    replace(SLOW_CHECKPOINT, owner="user_code"),
    "copies of the model in memory take {lost:.0%} of the time: at least {kept.times} copies in {kept.seen.seconds:time}, at {at}",
    (SAVED.saw[0]._replace(claim="copies again and again"),),
    (("regressed", "the time goes into copies, not into the steps"),),
    ("copy less often, or into one model that is kept: kept.load_state_dict(model.state_dict())",),
)


@dataclass(frozen=True)
class Saves:
    """Separate saves within a window of samples, and the share of their whole periods that they took."""

    seen: Profile
    times: int
    lost: float


def slow_checkpoint(case: Case) -> Outcome:
    """Fires when saves come back between steps and cost a good part of the time; of several ranks on the one that loses most."""
    parts = ((SAVED, Bin.SAVING), (COPIED, Bin.COPYING_MODEL))
    kept = ((rank, line, one, _recurring(case, rank, one)) for rank, _ in working(case) for line, one in parts)
    found = [(rank, line, one, saves) for rank, line, one, saves in kept if saves is not None]
    if not found:
        return None
    rank, line, one, saves = max(found, key=lambda each: each[3].lost)
    named_only = line is SAVED and saves.seen.share_where(partial(budget.saves, case)) < LOST_SHARE
    frame, sure = saves.seen.top_line(is_in(case, one)), HIGH if named_only else certainty(saves.lost)
    return slow(case, line, rank, saves.lost, frame=frame, confidence=sure, kept=saves)


def _recurring(case: Case, rank: Member, part: Bin) -> Saves | None:
    """Saves that come back and cost a good part of the time: many small ones in a short window, or a few long ones in two minutes.

    The time from save to save counts: a window of any other length holds now one more of them, now one less. A job whose steps are late
    is sampled more than one that is well: in a long window the time that saves were seen to take counts as well.
    """
    saving = is_in(case, part)
    for window in (case.profile(rank, LATELY_SECONDS), case.profile(rank, LONG_SECONDS)):
        times, lost = recurrent(case, rank, window, saving)
        if window.seconds >= LATELY_SECONDS:
            took = sum(one.reading.span_seconds for one in window.sights if saving(one.reading))
            lost = min(lost, took / window.seconds)
        if times >= TWICE and lost >= LOST_SHARE:
            return Saves(window, times, lost)
    return None


# That its thread writes meanwhile: a log beside it grows in a run that hangs, too. Of its files, where its own thread writes nothing:
# lines of a log, ours among them, are no checkpoint.
NAMED_BYTES, GROWN_BYTES = 2**18, 2**16
WRITES_OUT = Line(
    CHECKPOINTING,
    "a checkpoint is being written",
    (
        samples("{does}", "training code", "share"),
        Saw("io", "something is written", "{moved}", "nothing would mean a hang"),
    ),
)


def checkpointing(case: Case) -> Outcome:
    """Fires on a rank in save frames with something that moves."""
    for phase in phases(case):
        share = phase.profile.share_where(partial(_in_save_loop, case))
        wait = case.chains[phase.rank.pid].end.node.wait if phase.rank.pid in case.chains else None
        syncing, confidence = wait is not None and wait.kind == "sync", CERTAIN
        if share < MOSTLY and not (syncing and phase.grown_bytes(case) >= NAMED_BYTES):
            share, confidence = phase.profile.share_where(budget.is_named_so), HIGH
            if share < MOSTLY or phase.written_bytes(case) < NAMED_BYTES:
                continue
        moved = _progress_seen(case, phase, syncing)
        if not moved or len(phase.profile.runs(partial(retries, case.history))) >= TWICE:
            continue  # the same save, again and again: it fails
        sure = repeated(case, phase.profile.top_line(), confidence)
        return phase.finding(case, WRITES_OUT, sure, does="saves" if share else "syncs", share=share, moved=moved)
    return None


FLUSHES = frozenset({"fsync", "fdatasync"})


def _in_save_loop(case: Case, stack: Stack) -> bool:
    """True if a stack is in a save, or sleeps in a loop of the program that writes pieces out and syncs each."""
    if budget.saves(case, stack):
        return True
    line = calling_line(case.history, stack)
    called = names(line.loop_calls) if line is not None else frozenset()
    return bool(called & FLUSHES) and not called & TRAINS and budget.writes_much(case, stack) is True


def _progress_seen(case: Case, phase: Phase, syncing: bool) -> str:
    """What moved, in words; empty when nothing did."""
    calls, grown = phase.write_calls(case), phase.grown_bytes(case)
    if calls or grown >= GROWN_BYTES:
        return f"{calls} write calls, {grown / 2**20:.1f} MiB"
    if phase.runs > SIGN_OF_LIFE:
        return f"the thread runs {phase.runs:.0%} of a core"
    dirty = [
        (one.reading.dirty_bytes or 0) + (one.reading.writeback_bytes or 0)
        for one in case.history.series(Host, seconds=10.0)
    ]
    if syncing and len(dirty) >= 2 and dirty[-1] < dirty[0] - 2**20:
        return f"{(dirty[0] - dirty[-1]) / 2**20:.0f} MiB of dirty pages written back"
    return ""


# What is written, and what helps.
WRITTEN = {
    Bin.OUTPUT: ("output", "redirect the output to a file, and leave it to the kernel when that goes to the disk"),
    Bin.PICTURES: ("pictures", "hand pictures to a thread or a process that encodes them"),
    Bin.ROWS: ("rows of a database", "put the rows of many steps into one transaction (executemany)"),
}
STANDS_SECONDS, LONGER_WRITE = 2.0, 3.0  # times the longest write before
WRITES = Line(
    SLOW_OUTPUT,
    "the training thread writes {what} {lost:.0%} of the time at {at}",
    (
        samples("prints or logs", "below 2 %", "writing", optional=True),
        Saw("syscall", "blocked in a write that has to wait", "{blocked:.0%} of samples", "0 %", share="blocked"),
    ),
    (("blocked_pipe", "the writes go through, slowly"),),
    ("write every hundredth step", "{advice}"),
)


def slow_output(case: Case) -> Outcome:
    """Fires when a working rank spends its time in output, and writes."""
    found = worst(case, lambda rank, seen: max(_writing(case, rank, seen), held_back(case, rank)) * _writes(case, rank))
    if found is None:
        return None
    rank, seen, lost = found
    if (locked := at_file_lock(case, rank)) is not None and locked.waits.share >= MOSTLY * lost:
        return None  # there it waits for who has the file locked, and writes little
    spent = budget.budget(case, rank)
    most = max(WRITING, key=spent.share)
    what, advice = WRITTEN[most] if spent.share(most) >= MOSTLY * lost else WRITTEN[Bin.OUTPUT]
    frame = spent.of(*WRITING).top_line() or seen.top_line()
    facts = Facts(what=what, advice=advice, writing=_writing(case, rank, seen), blocked=held_back(case, rank))
    return slow(case, WRITES, rank, lost, frame=frame, seen=seen, **facts)


def _writes(case: Case, rank: Member) -> bool:
    """True if its training thread makes any call that reads or writes, as far as the kernel counts them."""
    return motion(case.history, rank.pid, case.progress[rank.pid].thread).io_calls != 0


def _writing(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the samples that write; a loop comes back to it, and what is written once at its end takes none of its time.

    Nor does one write that is not over yet and takes far longer than those before: it may never be.
    """
    prints = is_in(case, *WRITING)
    *before, last = seen.runs(prints) or [(0.0, 0.0)]
    usual = max((end - begin for begin, end in before), default=0.0)
    rests = motion(case.history, rank.pid, case.progress[rank.pid].thread).ran_ago_seconds or 0.0
    takes = max(last[1] - last[0], rests)
    lasts = last[1] >= seen.sights[-1].at and takes > max(STANDS_SECONDS, LONGER_WRITE * usual)
    return seen.share_where(prints) if before and not lasts else 0.0


STANDARD_OUTPUTS = (1, 2)


def held_back(case: Case, rank: Member) -> float:
    """Share of the looks at which it was blocked in a write to its stdout or stderr, or to a pipe to another program.

    What ``multiprocessing`` sends to a worker is work, and no output.
    """
    looks = case.history.series(Thread, rank.pid, case.progress[rank.pid].thread, seconds=LATELY_SECONDS)
    sends = case.profile(rank, LATELY_SECONDS).seen("mp_send")
    return sum(_waits_to_write(case, one.reading, sends) for one in looks) / len(looks) if looks else 0.0


def _waits_to_write(case: Case, look: Thread, sends: bool) -> bool:
    wait = look.wait
    if wait is None or wait.kind != "write" or wait.fd is None:
        return False
    file = open_file(case.history, look.pid, look.tid, wait.fd) if not sends else None
    return wait.fd in STANDARD_OUTPUTS or (file is not None and file.reading.kind in ("pipe", "fifo"))


RULES = (Rule(SLOW_CHECKPOINT, slow_checkpoint), Rule(CHECKPOINTING, checkpointing), Rule(SLOW_OUTPUT, slow_output))
