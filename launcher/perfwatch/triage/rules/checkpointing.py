"""A checkpoint is being written."""

from functools import partial

from perfwatch.triage.busy import MOVES_SHARE, Phase, phases
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.overlong import repeated
from perfwatch.triage.shares.saving import comes_back, is_named_so, saves, writes_much
from perfwatch.triage.words.backing_off import retries
from perfwatch.triage.words.code import calling_line, names
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import Host, Stack, Thread

CAUSE = Cause("checkpointing", "busy", "user_code", (Thread, Stack))

SAVING_SHARE = 0.5
NAMED_BYTES = 2**18  # that its thread writes meanwhile: a log beside it grows in a run that hangs, too
# Of its files, where its own thread writes nothing: lines of a log, ours among them, are no checkpoint.
GROWN_BYTES = 2**16
SEEN, NAMED = 0.92, 0.82
TRIES = 2  # separate rests after a save that failed
SYNCS = frozenset({"fsync", "fdatasync"})
TRAINS = frozenset({"backward", "step"})


def judge(case: Case) -> Outcome:
    """Fires on a rank in save frames with something that moves."""
    for phase in phases(case):
        share = phase.profile.share_where(partial(_saves, case))
        wait = case.chains[phase.rank.pid].end.node.wait if phase.rank.pid in case.chains else None
        syncing = wait is not None and wait.kind == "sync"
        confidence = SEEN
        if share < SAVING_SHARE and not (syncing and phase.grown_bytes(case) >= NAMED_BYTES):
            share, confidence = phase.profile.share_where(is_named_so), NAMED
            if share < SAVING_SHARE or phase.written_bytes(case) < NAMED_BYTES:
                continue
        moved = _moved(case, phase, syncing)
        if not moved or comes_back(case, phase.rank, phase.profile):
            continue
        if len(phase.profile.runs(partial(retries, case))) >= TRIES:
            continue  # the same save, again and again: it fails
        return phase.finding(
            CAUSE,
            "a checkpoint is being written",
            repeated(case, phase.profile.top_line(), confidence),
            (
                case.saw(
                    "stack",
                    f"pid {phase.rank.pid}",
                    "saves" if share else "syncs",
                    f"{share:.0%} of {phase.profile.samples} samples",
                    "training code",
                ),
                case.saw("io", f"pid {phase.rank.pid}", "something is written", moved, "nothing would mean a hang"),
            ),
        )
    return None


def _saves(case: Case, stack: Stack) -> bool:
    """Whether a stack is in a save, or rests in a loop of the program's own that writes pieces out and syncs each."""
    if saves(case, stack):
        return True
    line = calling_line(case.history, stack)
    called = names(line.loop_calls) if line is not None else frozenset()
    return bool(called & SYNCS) and not called & TRAINS and writes_much(case, stack) is True


def _moved(case: Case, phase: Phase, syncing: bool) -> str:
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


RULES = (Rule(CAUSE, judge),)
