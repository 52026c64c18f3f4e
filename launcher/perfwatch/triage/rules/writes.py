"""Training writes: checkpoints, copies of the model, output."""

from dataclasses import dataclass, replace
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.history import open_file
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Line, Rule
from perfwatch.triage.shares import budget
from perfwatch.triage.shares.budget import WRITING, Bin, is_in
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import LATELY_SECONDS, LOST_SHARE, MOSTLY, TWICE
from perfwatch.triage.slowness import (
    LONG_SECONDS,
    Part,
    Phase,
    certainty,
    phases,
    recurrent,
    repeated,
    slow,
    working,
)
from perfwatch.triage.words.code import calling_line, names, retries
from perfwatch.verdict import Level, Outcome
from perfwatch_probes.readings import Host, Stack, Thread

SLOW_CHECKPOINT = Cause("slow_checkpoint", "slow", "storage", (Stack,))
CHECKPOINTING = Cause("checkpointing", "busy", "user_code", (Thread, Stack))
SLOW_OUTPUT = Cause("slow_output", "slow", "user_code", (Stack, Thread))

SAVED = SLOW_CHECKPOINT.line("""
    checkpoints take {lost:.0%} of the time: at least {kept.times} saves in {kept.seen.seconds:time}, at {at}
    - saw stack: saves again and again | in {lost:.0%} of {kept.seen.samples} samples, {kept.times} times with other work between |
      below 5 %
    - not regressed: the time goes into saves, not into the steps
    - next: save less often, or asynchronously
""")
COPIED = Line(
    replace(SLOW_CHECKPOINT, owner="user_code"),
    "copies of the model in memory take {lost:.0%} of the time: at least {kept.times} copies in {kept.seen.seconds:time}, at {at}",
    (SAVED.saw[0]._replace(claim="copies again and again"),),
    (("regressed", "the time goes into copies, not into the steps"),),
    ("copy less often, or reuse one copy: kept.load_state_dict(model.state_dict())",),
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
    frame, sure = saves.seen.top_line(is_in(case, one)), Level.HIGH if named_only else certainty(saves.lost)
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
WRITES_OUT = CHECKPOINTING.line("""
    a checkpoint is being written
    - saw stack: {does} | {share:.0%} of {seen.samples} samples | training code
    - saw io: something is written | {moved} | nothing would mean a hang
""")


def checkpointing(case: Case) -> Outcome:
    """Fires on a rank in save frames with something that moves."""
    for phase in phases(case):
        share = phase.profile.share_where(partial(_in_save_loop, case))
        wait = case.chains[phase.rank.pid].end.node.wait if phase.rank.pid in case.chains else None
        syncing, confidence = wait is not None and wait.kind == "sync", Level.CERTAIN
        if share < MOSTLY and not (syncing and phase.grown_bytes(case) >= NAMED_BYTES):
            share, confidence = phase.profile.share_where(budget.is_named_so), Level.HIGH
            if share < MOSTLY or phase.grown(case, lambda thread: thread.written_chars) < NAMED_BYTES:
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
    return bool(called & FLUSHES) and budget.writes_much(case, stack) is True


def _progress_seen(case: Case, phase: Phase, syncing: bool) -> str:
    """What moved, in words; empty when nothing did."""
    calls, grown = phase.grown(case, lambda thread: thread.write_calls), phase.grown_bytes(case)
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
    Bin.OUTPUT: ("output", "redirect the output to a file, and let the kernel write it back"),
    Bin.PICTURES: ("pictures", "hand pictures to a thread or a process that encodes them"),
    Bin.ROWS: ("rows of a database", "put the rows of many steps into one transaction (executemany)"),
}
STANDS_SECONDS, LONGER_WRITE = 2.0, 3.0  # times the longest write before
WRITES = SLOW_OUTPUT.line("""
    the training thread writes {what} {lost:.0%} of the time at {at}
    - saw stack if writing: prints or logs | {writing:.0%} of {seen.samples} samples | below 2 %
    - saw syscall if blocked: blocked in write() | {blocked:.0%} of samples | 0 %
    - not blocked_pipe: the writes go through, slowly
    - next: write every hundredth step
    - next: {advice}
""")


def _output(case: Case, rank: Member, spent: budget.Budget) -> float:
    """Share of the time of a thread that makes calls, as far as the kernel counts them: by its samples, or by its blocked writes."""
    return max(_writing(case, rank, spent), held_back(case, rank)) if case.motion(rank).io_calls != 0 else 0.0


def _written(case: Case, rank: Member, spent: budget.Budget, lost: float) -> Facts:
    most = max(WRITING, key=spent.share)
    what, advice = WRITTEN[most if spent.share(most) >= MOSTLY * lost else Bin.OUTPUT]
    return Facts(what=what, advice=advice, writing=_writing(case, rank, spent), blocked=held_back(case, rank))


def _writing(case: Case, rank: Member, spent: budget.Budget) -> float:
    """Share of the samples that write; a loop comes back to it, and what is written once at its end takes none of its time.

    Nor does one write that is not over yet and takes far longer than those before: it may never be.
    """
    *before, last = spent.seen.runs(is_in(case, *WRITING)) or [(0.0, 0.0)]
    usual = max((end - begin for begin, end in before), default=0.0)
    takes = max(last[1] - last[0], case.motion(rank).ran_ago_seconds or 0.0)
    lasts = last[1] >= spent.seen.sights[-1].at and takes > max(STANDS_SECONDS, LONGER_WRITE * usual)
    return spent.share(*WRITING) if before and not lasts else 0.0


slow_output = Part(WRITES, WRITING, lost=_output, facts=_written).judge
STANDARD_OUTPUTS = (1, 2)


def held_back(case: Case, rank: Member) -> float:
    """Share of the looks at which it was blocked in a write to its stdout or stderr, or to a pipe to another program.

    What ``multiprocessing`` sends to a worker is work, and no output.
    """
    looks = case.looks(rank, LATELY_SECONDS)
    sends = case.profile(rank, LATELY_SECONDS).seen("mp_send")
    return sum(_waits_to_write(case, one.reading, sends) for one in looks) / len(looks) if looks else 0.0


def _waits_to_write(case: Case, look: Thread, sends: bool) -> bool:
    wait = look.wait
    if wait is None or wait.kind != "write" or wait.fd is None:
        return False
    file = open_file(case.history, look.pid, look.tid, wait.fd) if not sends else None
    return wait.fd in STANDARD_OUTPUTS or (file is not None and file.reading.kind in ("pipe", "fifo"))


RULES = (Rule(SLOW_CHECKPOINT, slow_checkpoint), Rule(CHECKPOINTING, checkpointing), Rule(SLOW_OUTPUT, slow_output))
