"""Whether a rank goes through its data and trains on none of it: the mean of a feature, how often each label comes.

From outside it looks like slow loading: the training thread waits for batches, or makes them, nearly all of the time. The text of
the loop that takes them tells: it looks at each batch and adds up, and calls nothing that could be a model.
"""

from collections import Counter
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.own_work import fetches, prepares
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, inside, is_user, own_frames, show, tags_of
from perfwatch.verdict import Alternative, Culprit, Finding
from perfwatch_probes.readings import Frame, SourceLine, Stack

WINDOW_SECONDS = 20.0
FEW_SAMPLES = 30
STEPS = ("backward", "optimizer")  # between them a draw is a part of each step; one that lasts is a long phase
MOSTLY = 0.9  # of the samples, in that one loop
SURE = 0.72  # by its text alone: a library that trains may be called by any name
LOADING = ("loader", "loader_wait", "fetch", "collate")
# What looks at a batch, adds up or shows how far it is: no model, and nothing that a program would call its own work.
LOOKS_AT = frozenset(
    "len sum mean var std min max any all isnan isfinite unique bincount histc square sqrt pow abs argmax size numel dim shape"
    " float double long int item tolist numpy cpu detach view reshape flatten clone zeros ones tensor cat stack"
    " append extend range enumerate zip tqdm set_postfix print time perf_counter monotonic format round str".split()
)


def gathers(case: Case, rank: Member) -> Frame | None:
    """The line of the loop in which a rank goes through its data for nothing but figures; None where it may train, or nobody knows."""
    return case.history.once(("gathers", rank.pid), lambda: _find(case, rank))


def makes_batches(case: Case, rank: Member, seen: Profile) -> float:
    """The share of the time in which a training thread makes its own batches, or draws them between its steps."""
    if seen.seen(*STEPS):
        return seen.share_where(prepares)
    return seen.share_where(fetches) if gathers(case, rank) is None else 0.0


def gathering(case: Case, cause: Cause) -> Finding | None:
    """What is said of a rank that does."""
    for rank in case.ranks:
        now, loop = case.progress[rank.pid], gathers(case, rank)
        comes = now.kind != "still" or motion(case.history, rank.pid, now.thread).frozen is False
        if comes and loop is not None:
            return _finding(case, cause, rank, loop)
    return None


def _finding(case: Case, cause: Cause, rank: Member, loop: Frame) -> Finding:
    seen = case.profile(rank, WINDOW_SECONDS)
    return Finding(
        cause=cause.name,
        state=cause.state,
        summary=f"it goes through its data and trains on none of it: the loop at {show(loop)} only looks at each batch",
        confidence=SURE,
        owner=cause.owner,
        culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=show(loop)),),
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "takes batches, and trains on none",
                f"{seen.samples} samples, no pass of a model",
                "a step for each",
            ),
        ),
        alternatives=(Alternative(cause="starved_by_transforms", refuted_by="the loop makes no step by its text"),),
    )


def _find(case: Case, rank: Member) -> Frame | None:
    seen, steps = case.profile(rank, WINDOW_SECONDS), case.progress[rank.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds
    if seen.samples < FEW_SAMPLES or counted or seen.seen("forward", "backward", "optimizer", "scaler", "collective"):
        return None
    loop = _loop(case.history, seen)
    if loop is None or seen.share_where(partial(inside, loop)) < MOSTLY:
        return None
    line = line_of(case.history, loop)
    return loop if line is not None and _only_looks(line) else None


def _loop(history: History, seen: Profile) -> Frame | None:
    """The program's own line at which most batches are taken; of a generator that hands them on, the line that takes them there."""
    lines: Counter[Frame] = Counter()
    for one in seen.sights:
        if (taken := _taken_at(history, one.reading)) is not None:
            lines[taken] += one.reading.samples
    return lines.most_common(1)[0][0] if lines else None


def _taken_at(history: History, stack: Stack) -> Frame | None:
    frames = own_frames(stack)
    depths = [n for n, frame in enumerate(frames) if any_tag(tags_of(frame.function, frame.file), *LOADING)]
    outside = (frame for frame in frames[max(depths, default=len(frames)) + 1 :] if is_user(frame))
    return next((frame for frame in outside if not _hands_on(line_of(history, frame))), None)


def _hands_on(line: SourceLine | None) -> bool:
    return line is not None and line.hands_out


def _only_looks(line: SourceLine) -> bool:
    return line.loops[:1] == ("for",) and not line.calls_unnamed and names(line.loop_calls) <= LOOKS_AT
