"""Checkpoints take a large part of the time.

What it means
    Steps are as fast as ever, but every so often the training thread stops to save.

How it is recognised
    Stretches of save frames or fsync (or of a function or class that says by its name that it saves) come back between steps,
    in twenty seconds or in two minutes, and add up to a good part of the time from save to save. Where steps are counted, the
    long ones among them must cost as much.

What it is mistaken for
    ``checkpointing``: one long save. ``regressed``: the median moved.

What to do next
    Save less often, asynchronously (``torch.distributed.checkpoint.async_save``), or to a faster disk.
"""

from functools import partial

from perfwatch.probes.readings import Stack
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.saving import in_save, recurrent_saves, saves
from perfwatch.triage.slowness import LOST_SHARE, certainty, slow, working
from perfwatch.triage.verdict import Alternative, Outcome
from perfwatch.triage.words.frames import show

CAUSE = Cause("slow_checkpoint", "slow", "storage", (Stack,))

NAMED = 0.82  # told by the name of a function alone


def judge(case: Case) -> Outcome:
    """Fires when saves come back between steps and cost a good part of the time; of several ranks on the one that loses most."""
    found = [(rank, kept) for rank, seen in working(case) if (kept := recurrent_saves(case, rank, seen)) is not None]
    if not found:
        return None
    rank, kept = max(found, key=lambda one: one[1].lost)
    frame = kept.seen.top_line(partial(in_save, case))
    called = kept.seen.share_where(partial(saves, case)) >= LOST_SHARE
    return slow(
        case,
        CAUSE,
        rank,
        lost=kept.lost,
        frame=frame,
        confidence=certainty(kept.lost) if called else NAMED,
        summary=f"checkpoints take {kept.lost:.0%} of the time: at least {kept.times} saves in {kept.seen.seconds:.0f} s, at {show(frame)}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "saves again and again",
                f"in {kept.lost:.0%} of {kept.seen.samples} samples, {kept.times} times with other work between",
                "below 5 %",
            ),
        ),
        alternatives=(Alternative(cause="regressed", refuted_by="the time goes into saves, not into the steps"),),
        next=("save less often, or asynchronously",),
    )
