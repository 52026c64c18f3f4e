"""Checkpoints take a large part of the time."""

from dataclasses import dataclass
from functools import partial

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.saving import copying, in_save, recurrent_copies, recurrent_saves, saves
from perfwatch.triage.slowness import LOST_SHARE, certainty, slow, working
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack

CAUSE = Cause("slow_checkpoint", "slow", "storage", (Stack,))

NAMED = 0.82  # told by the name of a function alone


@dataclass(frozen=True)
class Kind:
    """What comes back between steps, how one of them is called, whose matter that is, and what helps."""

    what: str
    times: str
    owner: str
    way_out: str


SAVED = Kind("checkpoints", "saves", "storage", "save less often, or asynchronously")
COPIED = Kind(
    "copies of the model in memory",
    "copies",
    "user_code",
    "copy less often, or into one model that is kept: kept.load_state_dict(model.state_dict())",
)


def judge(case: Case) -> Outcome:
    """Fires when saves come back between steps and cost a good part of the time; of several ranks on the one that loses most."""
    found = [
        (rank, kept, kind)
        for rank, seen in working(case)
        for kind, kept in ((SAVED, recurrent_saves(case, rank, seen)), (COPIED, recurrent_copies(case, rank, seen)))
        if kept is not None
    ]
    if not found:
        return None
    rank, kept, kind = max(found, key=lambda one: one[1].lost)
    is_one = copying(case, kept.seen) if kind is COPIED else partial(in_save, case)
    certain = kind is COPIED or kept.seen.share_where(partial(saves, case)) >= LOST_SHARE
    frame = kept.seen.top_line(is_one)
    told = slow(
        case,
        CAUSE,
        rank,
        lost=kept.lost,
        frame=frame,
        confidence=certainty(kept.lost) if certain else NAMED,
        summary=f"{kind.what} take {kept.lost:.0%} of the time: "
        f"at least {kept.times} {kind.times} in {kept.seen.seconds:.0f} s, at {show(frame)}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                f"{kind.times} again and again",
                f"in {kept.lost:.0%} of {kept.seen.samples} samples, {kept.times} times with other work between",
                "below 5 %",
            ),
        ),
        alternatives=(
            Alternative(cause="regressed", refuted_by=f"the time goes into {kind.times}, not into the steps"),
        ),
        next=(kind.way_out,),
    )
    return msgspec.structs.replace(told, owner=kind.owner)


RULES = (Rule(CAUSE, judge),)
