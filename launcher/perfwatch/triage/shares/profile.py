"""Where a thread spends its time: shares of stack samples, by what kind of work the stack names.

Samples come at randomised or even intervals, so a share of samples is a share of time. Few samples mean a wide interval:
rules ask for a minimum number.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.triage.history import History, Seen, once
from perfwatch.triage.shares import thresholds
from perfwatch.triage.words.frames import any_tag, is_user, short_name, show, tags, tags_of, user_frame, user_frames
from perfwatch_probes import readings as r

HOLD_SECONDS = 260.0  # a calm job is sampled once a minute, one of many processes every four
UNWATCHED_SECONDS = 0.5  # between two samples: longer gaps are unknown
ENOUGH_SAMPLES = thresholds.ENOUGH_SAMPLES
# Kinds of work that only a training (or evaluating) thread does.
TRAINING_TAGS = ("backward", "optimizer", "forward", "loader", "scaler", "collective")


def at_training(stack: r.Stack) -> bool:
    """True if a stack is in training code; a sampler of the program's own, which a loader asks for a batch, may never give one."""
    found = tags(stack).intersection(TRAINING_TAGS)
    return bool(found - {"loader"} if in_own_sampler(stack) else found)


def in_own_sampler(stack: r.Stack) -> bool:
    """True if a stack is in code of the program's own that a loader asks which samples come next, at a batch or as an epoch begins."""
    own: r.Frame | None = None
    for frame in stack.frames:
        found = tags_of(frame.function, frame.file)
        if is_user(frame):
            if "sampler" in tags(stack):
                return True
            own = frame
        elif own is not None:
            return "loader_start" in found and short_name(own.function) == "__iter__"
        elif "sampler" in found:
            return False
    return False


@dataclass(frozen=True)
class Profile:
    """The samples of one thread over a while."""

    sights: tuple[Seen[r.Stack], ...]
    seconds: float  # between the first and the last sample

    @property
    def samples(self) -> int:
        """How many times the thread was looked at."""
        return sum(one.reading.samples for one in self.sights)

    def share(self, *wanted: str) -> float:
        """Share of samples whose stack has one of these tags; 0 without samples."""
        return self.share_where(lambda stack: any_tag(tags(stack), *wanted))

    def count(self, holds: Callable[[r.Stack], bool]) -> int:
        """The samples for which something holds."""
        return sum(one.reading.samples for one in self.sights if holds(one.reading))

    def share_where(self, holds: Callable[[r.Stack], bool]) -> float:
        """Share of samples for which something holds; 0 without samples."""
        return self.count(holds) / self.samples if self.sights else 0.0

    def seen(self, *wanted: str) -> bool:
        """True if any sample had one of these tags."""
        return any(any_tag(tags(one.reading), *wanted) for one in self.sights)

    def runs(self, holds: Callable[[r.Stack], bool]) -> list[tuple[float, float]]:
        """Unbroken stretches (begin, end) during which something held; times are those of the samples.

        A stretch lasts until the next sample of something else, unless nobody looked for a while before that one.
        """
        stretches: list[tuple[float, float]] = []
        open_since: float | None = None
        last_end = 0.0
        for one in self.sights:
            begin = one.at - one.reading.span_seconds
            if holds(one.reading):
                open_since = begin if open_since is None else open_since
                last_end = one.at
            elif open_since is not None:
                stretches.append((open_since, begin if begin - last_end <= UNWATCHED_SECONDS else last_end))
                open_since = None
        if open_since is not None:
            stretches.append((open_since, last_end))
        return stretches

    def turns(self, holds: Callable[[r.Stack], bool]) -> int:
        """How many times the thread went from elsewhere into a state: a lower bound of a loop's iterations."""
        return sum(
            1
            for begin, _ in self.runs(holds)
            if self.sights and begin > self.sights[0].at - self.sights[0].reading.span_seconds
        )

    def where(self, holds: Callable[[r.Stack], bool]) -> "Profile":
        """The samples for which something holds."""
        return Profile(tuple(one for one in self.sights if holds(one.reading)), self.seconds)

    def after_last(self, holds: Callable[[r.Stack], bool]) -> "Profile":
        """The samples after the last one for which something holds; all where it holds for none."""
        last = max((number for number, one in enumerate(self.sights, 1) if holds(one.reading)), default=0)
        return Profile(self.sights[last:], self.seconds)

    def lines(self) -> Counter[str]:
        """Samples by the program's own line, ``function (file:line)``."""
        counted: Counter[str] = Counter()
        for one in self.sights:
            counted[show(user_frame(one.reading)) or "?"] += one.reading.samples
        return counted

    def commonest(self, frame_of: Callable[[r.Stack], r.Frame | None]) -> r.Frame | None:
        """The frame that most samples have, of those that are found in each; None where none is."""
        return next(iter(self.frames(frame_of)), None)

    def busiest(self, most: int) -> list[r.Frame]:
        """The program's own frames that most of the samples are in."""
        return list(self.frames(lambda stack: next(iter(user_frames(stack)), None)))[:most]

    def callers(self, most: int) -> list[r.Frame]:
        """The program's own frames from which most of the samples were called, at whatever depth."""
        counted: Counter[r.Frame] = Counter()
        for one in self.sights:
            counted.update(dict.fromkeys(user_frames(one.reading)[1:], one.reading.samples))
        return [frame for frame, _ in counted.most_common(most)]

    def frames(self, frame_of: Callable[[r.Stack], r.Frame | None]) -> dict[r.Frame, int]:
        """Samples by what is found in each, the commonest first."""
        counted: Counter[r.Frame] = Counter()
        for one in self.sights:
            if (frame := frame_of(one.reading)) is not None:
                counted[frame] += one.reading.samples
        return dict(counted.most_common())

    def top_line(self, holds: Callable[[r.Stack], bool] = lambda _: True) -> r.Frame | None:
        """The line in which most samples are of that function of the program's own in which most samples are; of those that hold."""
        lines = self.frames(lambda stack: user_frame(stack) if holds(stack) else None)
        functions: Counter[tuple[str, str]] = Counter()
        for frame, samples in lines.items():
            functions[frame.function, frame.file] += samples
        busiest = functions.most_common(1)[0][0] if functions else None
        return next((frame for frame in lines if (frame.function, frame.file) == busiest), None)


@once
def profile(history: History, pid: int, tid: int, seconds: float | None = None) -> Profile:
    """The samples of one thread over the last ``seconds`` (default: all that there are)."""
    sights = tuple(seen for seen in history.series(r.Stack, pid, tid, seconds=seconds) if seen.reading.frames)
    if not sights:
        return Profile((), 0.0)
    return Profile(sights, sights[-1].at - (sights[0].at - sights[0].reading.span_seconds))


def lasting(history: History, pid: int, tid: int, seconds: float | None = None) -> Profile:
    """The same; if a calm job was not sampled since, the samples before: they hold until the next ones."""
    newest = history.newest(r.Stack)
    if seconds is None or newest is None or not seconds < history.at - newest < HOLD_SECONDS:
        return profile(history, pid, tid, seconds)
    return profile(history, pid, tid, history.at - newest + seconds)
