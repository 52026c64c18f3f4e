"""Checkpoints take a large part of the time.

What it means
    Steps are as fast as ever, but every so often the training thread stops to save.

How it is recognised
    Stretches of save frames or fsync come back between steps and add up to a good part of the time; where steps are counted, the
    median is unchanged and a few intervals are many times longer.

What it is mistaken for
    ``checkpointing``: one long save. ``regressed``: the median moved.

What to do next
    Save less often, asynchronously (``torch.distributed.checkpoint.async_save``), or to a faster disk.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.code import calling_line, names
from perfwatch.triage.frames import show, tags
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import slow, worst
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("slow_checkpoint", "slow", "storage", (Stack,))

COMES_BACK = 2  # separate saves within the window
SAVES = frozenset("save save_file savez dump".split())
SYNCS = frozenset("fsync fdatasync sync".split())
MUCH_BYTES = 2**18  # per second: an audit trail or a log that is synced line by line stays far below


def judge(case: Case) -> Outcome:
    """Fires when saves come back between steps and cost a good part of the time."""
    found = worst(case, lambda rank, seen: seen.share_where(lambda stack: saves(case, stack)))
    if found is None:
        return None
    rank, seen, lost = found
    stretches = [end - begin for begin, end in seen.runs(lambda stack: saves(case, stack))]
    if len(stretches) < COMES_BACK or not seen.seen("backward", "optimizer", "forward"):
        return None
    frame = seen.top_line(lambda stack: saves(case, stack))
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        summary=f"checkpoints take {lost:.0%} of the time: at least {len(stretches)} saves in {seen.seconds:.0f} s, at {show(frame)}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "saves again and again",
                f"in {lost:.0%} of {seen.samples} samples, {len(stretches)} times with other work between",
                "below 5 %",
            ),
        ),
        alternatives=(Alternative(cause="regressed", refuted_by="the time goes into saves, not into the steps"),),
        next=("save less often, or asynchronously",),
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
