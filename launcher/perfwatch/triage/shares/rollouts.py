"""Whether a training thread steps an environment, as reinforcement learning does: its experience is made, no data set is read."""

import re
from collections.abc import Callable

from perfwatch.triage.history import History
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, own_frames, short_name, tags, user_frame
from perfwatch_probes.readings import Frame, SourceLine, Stack

STEPS = frozenset("step reset step_wait step_async".split())
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
        if short_name(frame.function) in STEPS
    }

    def holds(stack: Stack) -> bool:
        frames = own_frames(stack)
        pairs = zip(frames, (*frames[1:], None), strict=True)
        return any(
            short_name(frame.function) in STEPS
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
        if short_name(call) in STEPS
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
