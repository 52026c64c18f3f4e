"""Does a rank that makes forward passes alone stay in one ``while`` loop of the program's own, and for how long?

Whoever writes an answer word by word turns in such a loop until the last word comes. One that never comes looks like an evaluation,
for all that it does is one. What tells them apart: a loop that ends is left, if only for a thousandth of the time, and evaluations
that were seen to end took so long.
"""

from dataclasses import dataclass
from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen, once
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.motion import whole
from perfwatch.triage.moving.within import inside_of, stays
from perfwatch.triage.patience import long_timeout, temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.thresholds import MANY_TIMES
from perfwatch.triage.words.code import TRAINS, line_of, names
from perfwatch.triage.words.frames import any_tag, inside, is_user, own_frames, tags
from perfwatch_probes import readings as r

UPDATES = ("backward", "optimizer", "scaler")
# What a loop calls that goes through something, or answers somebody: it ends with what it is given, or is a service.
GIVEN = frozenset("next get fetch read recv receive load pop popleft poll take accept input put send".split())
LONGEST_TIMES = 30.0  # the longest evaluation that was seen to end
LONG = 8.0  # times the patience: a watch remembers no more than ten minutes, and of longer ones nothing can be told


@dataclass(frozen=True)
class Unleft:
    """The loop, and for how long it was not left."""

    frame: r.Frame  # the loop's own line, as it was seen last
    samples: int
    seconds: float  # that somebody watched it there
    usual_seconds: float | None  # the longest pause between updates with that function in it; None: nothing to go by
    doubtful_seconds: float  # from when on it is no evaluation for all that is known ...
    told_seconds: float  # ... and from when on it has no end, if it was seen to end before

    @property
    def doubted(self) -> bool:
        """True if it has lasted too long to be called an evaluation."""
        return self.seconds >= self.doubtful_seconds


@once
def unleft(case: Case, rank: Member) -> Unleft | None:
    """The ``while`` loop around forward passes that a rank is in; None where there is none, or it trains in there."""
    history, node = case.history, case.chains[rank.pid].start
    loop = loop_of(history, node)
    loops, at = loop.kinds, loop.frame
    line = line_of(history, at)
    if loops[:1] != ("while",) or at is None or line is None or not is_user(at) or _is_given(line):
        return None
    series = [seen for seen in history.series(r.Stack, node.pid, node.tid) if seen.reading.frames]
    stacks = whole(series)
    frames = own_frames(stacks[-1].reading) if stacks else ()
    depth = next((n for n, one in enumerate(frames) if (one.function, one.file) == (at.function, at.file)), None)
    if depth is None or inside_of(history, frames[depth:]) is not None:
        return None
    times = stays(history, stacks, frames[depth:], line.loops)
    now = times[-1] if times else None
    if now is None or now.loop is None:
        return None
    before = [one for one in series if one.at < now.begin]
    since = [one for one in series if one.at >= now.begin]
    passes = sum(one.reading.samples for one in since if "forward" in tags(one.reading))
    if passes < MANY_TIMES or any(_updates(one) for one in since):
        return None
    usual, patience = _usual(before, at), temporal(case)
    least = None if usual is None or LONGEST_TIMES * usual > LONG * patience else LONGEST_TIMES * usual
    doubtful = long_timeout(case) if least is None else max(patience, least)
    return Unleft(
        frame=now.loop,
        samples=now.samples,
        seconds=now.seconds,
        usual_seconds=None if least is None else usual,
        doubtful_seconds=doubtful,
        told_seconds=max(long_timeout(case), doubtful),
    )


def _is_given(line: r.SourceLine) -> bool:
    """True if a loop asks for what it goes through, hands something on, or trains by its text."""
    called = names(line.loop_calls)
    return line.hands_out or called >= TRAINS or any(GIVEN.intersection(name.lower().split("_")) for name in called)


def _usual(before: list[Seen[r.Stack]], at: r.Frame) -> float | None:
    """The longest time between two updates that were seen, with that function in between."""
    updates = [n for n, one in enumerate(before) if _updates(one)]
    pauses = [
        before[later].at - before[earlier].at
        for earlier, later in pairwise(updates)
        if any(inside(at, one.reading) for one in before[earlier + 1 : later])
    ]
    return max(pauses, default=None)


def _updates(seen: Seen[r.Stack]) -> bool:
    return any_tag(tags(seen.reading), *UPDATES)
