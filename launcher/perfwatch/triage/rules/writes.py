"""Training writes: checkpoints, copies of the model, output."""

from dataclasses import replace
from functools import partial

from perfwatch.triage.busy import MOVES_SHARE, Phase, phases
from perfwatch.triage.cards.gpu import regimes, unseen
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.present import open_file
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.busy import repeated
from perfwatch.triage.shares import saving
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import CERTAIN, HIGH, LATELY_SECONDS, MOSTLY, TWICE
from perfwatch.triage.slowness import LOST_SHARE, Facts, Line, Saw, certainty, samples, slow, working, worst
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.words.code import TRAINS, calling_line, line_of, names, retries
from perfwatch.triage.words.frames import any_tag, inner_tags, tags, user_frame
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


def slow_checkpoint(case: Case) -> Outcome:
    """Fires when saves come back between steps and cost a good part of the time; of several ranks on the one that loses most."""
    found = []
    for rank, seen in working(case):
        for line, is_one in ((SAVED, partial(saving.in_save, case)), (COPIED, saving.copying(case, seen))):
            if (kept := saving.recurring(case, rank, seen, is_one)) is not None:
                found.append((rank, kept, line))
    if not found:
        return None
    rank, kept, line = max(found, key=lambda one: one[1].lost)
    is_one = saving.copying(case, kept.seen) if line is COPIED else partial(saving.in_save, case)
    certain = line is COPIED or kept.seen.share_where(partial(saving.saves, case)) >= LOST_SHARE
    sure = certainty(kept.lost) if certain else HIGH
    return slow(case, line, rank, kept.lost, frame=kept.seen.top_line(is_one), confidence=sure, kept=kept)


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
            share, confidence = phase.profile.share_where(saving.is_named_so), HIGH
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
    if saving.saves(case, stack):
        return True
    line = calling_line(case.history, stack)
    called = names(line.loop_calls) if line is not None else frozenset()
    return bool(called & FLUSHES) and not called & TRAINS and saving.writes_much(case, stack) is True


def _progress_seen(case: Case, phase: Phase, syncing: bool) -> str:
    """What moved, in words; empty when nothing did."""
    calls, grown = phase.write_calls(case), phase.grown_bytes(case)
    if calls or grown >= GROWN_BYTES:
        return f"{calls} write calls, {grown / 2**20:.1f} MiB"
    if phase.runs > MOVES_SHARE:
        return f"the thread runs {phase.runs:.0%} of a core"
    dirty = [
        (one.reading.dirty_bytes or 0) + (one.reading.writeback_bytes or 0)
        for one in case.history.series(Host, seconds=10.0)
    ]
    if syncing and len(dirty) >= 2 and dirty[-1] < dirty[0] - 2**20:
        return f"{(dirty[0] - dirty[-1]) / 2**20:.0f} MiB of dirty pages written back"
    return ""


PRINTING = frozenset({"print", "pprint"})
WRITING = frozenset({"write", "flush", "writelines"})
STREAMS = frozenset({"stdout", "stderr", "__stdout__", "__stderr__"})
LOGGING = frozenset("info debug warning error critical exception log".split())
# What is written, and what helps.
OUTPUT = ("output", "redirect the output to a file, and leave it to the kernel when that goes to the disk")
PICTURES = ("pictures", "hand pictures to a thread or a process that encodes them")
ROWS = ("rows of a database", "put the rows of many steps into one transaction (executemany)")
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
    stores = partial(saving.stores_rows, case)
    what, advice = ROWS if seen.share_where(stores) >= MOSTLY * lost else OUTPUT
    what, advice = PICTURES if seen.share("picture") >= MOSTLY * lost else (what, advice)
    frame = seen.top_line(partial(_prints, case)) or seen.top_line()
    facts = Facts(what=what, advice=advice, writing=_writing(case, rank, seen), blocked=held_back(case, rank))
    return slow(case, WRITES, rank, lost, frame=frame, seen=seen, **facts)


def _prints(case: Case, stack: Stack) -> bool:
    found = tags(stack)
    if "log_lock" in found:
        return False  # a thread that waits for its turn writes nothing
    if (
        any_tag(found, "log", "tracker", "picture")
        or saving.syncs_little(case, stack)
        or saving.stores_rows(case, stack)
    ):
        return True
    if _for_device(case, stack):
        return False  # print(loss.item()): what takes the time is the wait for the value
    frame = user_frame(stack)
    called = inner_tags(stack)  # print(model(x)) makes a pass; a hook that prints is within one
    if frame is None or any_tag(called, "save", "backward", "optimizer", "forward", "loader", "http", "compile"):
        return False
    line = line_of(case.history, frame)
    return line is not None and any(map(_is_output, line.calls)) and not saving.rather_computes(case, stack, line.calls)


def _for_device(case: Case, stack: Stack) -> bool:
    """True if the line waits for a GPU that this process uses, seen or not; writes that block are seen by themselves."""
    uses = bool(regimes(case.history, stack.pid)) or unseen(case.history, stack.pid)
    return uses and in_sync(case.history, stack)


def _is_output(call: str) -> bool:
    """True if a called name writes for people to read: ``print``, ``sys.stdout.write``, ``logger.info``."""
    owner, _, name = call.rpartition(".")
    if name in WRITING:
        return owner.rsplit(".", 1)[-1] in STREAMS
    return name in PRINTING or (name in LOGGING and "log" in owner.lower())


def _writes(case: Case, rank: Member) -> bool:
    """True if its training thread makes any call that reads or writes, as far as the kernel counts them."""
    return motion(case.history, rank.pid, case.progress[rank.pid].thread).io_calls != 0


def _writing(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the samples that write; a loop comes back to it, and what is written once at its end takes none of its time.

    Nor does one write that is not over yet and takes far longer than those before: it may never be.
    """
    prints = partial(_prints, case)
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
