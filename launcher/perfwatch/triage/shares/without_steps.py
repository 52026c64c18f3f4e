"""Loops over data or an environment that make no training step."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.own_work import fetches, prepares
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import ENOUGH_SAMPLES, LATELY_SECONDS, NEARLY_ALL
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import (
    any_tag,
    inside,
    is_user,
    own_frames,
    short_name,
    tags,
    tags_of,
    user_frame,
)
from perfwatch_probes.readings import Frame, SourceLine, Stack

STEPS = ("backward", "optimizer")  # between them a draw is a part of each step; one that lasts is a long phase
LOADING = ("loader", "loader_wait", "fetch", "collate")
# What looks at a batch, adds up or shows how far it is: no model, and nothing that a program would call its own work.
LOOKS_AT = frozenset(
    "len sum mean var std min max any all isnan isfinite unique bincount histc square sqrt pow abs argmax size numel dim shape"
    " float double long int item tolist numpy cpu detach view reshape flatten clone zeros ones tensor cat stack"
    " append extend range enumerate zip tqdm set_postfix print time perf_counter monotonic format round str".split()
)


def gathers(case: Case, rank: Member) -> Frame | None:
    """The line of a loop that goes through data for nothing but statistics; None where it may train, or its text is unknown."""
    return case.history.once(("gathers", rank.pid), lambda: _gathering_loop(case, rank))


def makes_batches(case: Case, rank: Member, seen: Profile) -> float:
    """The share of the time in which a training thread makes its own batches, or draws them between its steps."""
    if seen.seen(*STEPS):
        return seen.share_where(prepares)
    return seen.share_where(fetches) if gathers(case, rank) is None else 0.0


def _gathering_loop(case: Case, rank: Member) -> Frame | None:
    seen, steps = case.profile(rank, LATELY_SECONDS), case.progress[rank.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seen.seconds
    if (
        seen.samples < ENOUGH_SAMPLES
        or counted
        or seen.seen("forward", "backward", "optimizer", "scaler", "collective")
    ):
        return None
    loop = _line_of_batches(case.history, seen)
    if loop is None or seen.share_where(partial(inside, loop)) < NEARLY_ALL:
        return None
    line = line_of(case.history, loop)
    return loop if line is not None and _only_looks(line) else None


def _line_of_batches(history: History, seen: Profile) -> Frame | None:
    """The program's own line at which most batches are taken."""
    lines: Counter[Frame] = Counter()
    for one in seen.sights:
        if (taken := _taken_at(history, one.reading)) is not None:
            lines[taken] += one.reading.samples
    return lines.most_common(1)[0][0] if lines else None


def _taken_at(history: History, stack: Stack) -> Frame | None:
    frames = own_frames(stack)
    depths = [n for n, frame in enumerate(frames) if any_tag(tags_of(frame.function, frame.file), *LOADING)]
    outside = (frame for frame in frames[max(depths, default=len(frames)) + 1 :] if is_user(frame))
    return next(outside, None)


def _only_looks(line: SourceLine) -> bool:
    return line.loops[:1] == ("for",) and not line.calls_unnamed and names(line.loop_calls) <= LOOKS_AT


ENVIRONMENT_CALLS = frozenset("step reset step_wait step_async".split())
# What Gym made the field's interface (https://gymnasium.farama.org/api/env): ``step(action)`` answers with an observation, a
# reward, whether that was the end, and more, so that three names at least take the answer of one call.
_ANSWERED = re.compile(r"^\(?[^=(]+,[^=(]+,[^=]*=\s*(?:await\s+)?[^=\s]*\bstep(?:_wait)?\(\s*[^)\s]")
# Else its owner is called what it is: the step of an optimizer, a scheduler or a trainer is another matter.
_OWNED = re.compile(r"(?:^|\.)\w*env(?:s|ironments?)?\.(?:step|reset)(?:_wait|_async)?$", re.IGNORECASE)
_LIBRARIES = re.compile(
    r"/(?:gymnasium|gym|stable_baselines3/common/vec_env|pettingzoo|torchrl/envs|dm_env|pufferlib)/"
)


def in_environment(history: History, seen: Profile) -> Callable[[Stack], bool]:
    """What tells whether a stack is in an environment's ``step`` or ``reset``: it computes there, or waits for processes that do.

    A function of that name below which ``seen`` has training is a step of the program's own, whatever it answers with.
    """
    trains = {
        (frame.function, frame.file)
        for one in seen.sights
        if any_tag(tags(one.reading), "backward", "optimizer")
        for frame in one.reading.frames
        if short_name(frame.function) in ENVIRONMENT_CALLS
    }

    def holds(stack: Stack) -> bool:
        frames = own_frames(stack)
        pairs = zip(frames, (*frames[1:], None), strict=True)
        return any(
            short_name(frame.function) in ENVIRONMENT_CALLS
            and (frame.function, frame.file) not in trains
            and _is_environments(history, frame, caller)
            for frame, caller in pairs
        )

    return holds


def in_rollout(history: History, seen: Profile) -> Callable[[Stack], bool]:
    """The same, and what else the loop does that steps the environment: it acts, and keeps what comes of it; no pass goes backward."""
    inside = in_environment(history, seen)
    frames = {frame for one in seen.sights for frame in one.reading.frames}
    asked = {
        (line.file, call)
        for frame in frames
        if (line := line_of(history, frame)) is not None and _asks(line)
        for call in line.calls
        if short_name(call) in ENVIRONMENT_CALLS
    }

    def holds(stack: Stack) -> bool:
        line = line_of(history, user_frame(stack))
        if line is None or "backward" in names(line.loop_calls):
            return inside(stack)
        return inside(stack) or any((line.file, call) in asked for call in line.loop_calls)

    return holds


def _is_environments(history: History, frame: Frame, caller: Frame | None) -> bool:
    return _LIBRARIES.search(frame.file) is not None or _asks(line_of(history, caller))


def _asks(line: SourceLine | None) -> bool:
    return line is not None and (bool(_ANSWERED.search(line.text)) or any(map(_OWNED.search, line.calls)))
