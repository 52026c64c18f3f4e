"""Does the training itself go on? Judged on the thread that runs the steps, never on the process as a whole."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from perfwatch.text import duration
from perfwatch.triage.history import History, Seen, median, quantile
from perfwatch.triage.moving.motion import WINDOW_SECONDS, Motion, motion, stack_key
from perfwatch.triage.moving.thresholds import LATELY_SECONDS
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.roles.job import Job, Member, training_thread
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile, at_training, lasting, profile
from perfwatch.triage.shares.thresholds import ENOUGH_SAMPLES, FEW_TIMES, MINUTE_SECONDS, MOSTLY, TWICE
from perfwatch.triage.waits.devices import served
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, steps_torch, tags, user_frame
from perfwatch_probes import readings as r

STEP_GRACE = 5.0  # a rank is late when it made no step for so many times its usual longest ...
STEP_GRACE_SECONDS = 3.0  # ... and at least for so long
REMEMBERED_SECONDS = 300.0  # in which the longest step counts: a round of rollouts or an evaluation ends in one
WARM_UP_STEPS = 10  # of a process: the first ones compile, allocate and autotune
NEWEST_SECONDS = 10.0  # of steps that tell how long one takes now
LONGER = 2.5  # times the usual one: it is not only steps that were made
STEP_TAGS = {*TRAINING_TAGS} - {"loader"}
STILL_SHARE = 0.95  # of the samples in one stack; a nonblocking dump tears about 3 %
STILL_SAMPLES = 4


@dataclass(frozen=True)
class StepClock:
    """What the agent counted in one rank lately."""

    count: int
    ago_seconds: float | None
    intervals: tuple[float, ...]  # of the time that was asked for, newest last; no warm-up where there are enough
    advanced: int  # over the time that was asked for
    usual: tuple[float, ...]  # these intervals, or where they are few the newest ones of any age
    longest_seconds: float | None  # of these, and of the last minutes

    @property
    def median_seconds(self) -> float | None:
        """The usual step time."""
        return median(self.usual)

    @property
    def newest_seconds(self) -> float | None:
        """The step time of the last ten seconds: what it is now, in a run whose steps become longer."""
        ago = accumulate(reversed(self.usual))
        lately = sum(seconds <= NEWEST_SECONDS for seconds in ago)
        return median(self.usual[-max(1, lately) :])

    def is_overdue(self, seconds: float, times: float) -> bool:
        """True if no step came for so long, and for so many times the longest that was seen."""
        return (self.ago_seconds or 0.0) > max(seconds, times * (self.longest_seconds or 0.0))

    def paused(self, seconds: float) -> bool:
        """True if one step took most of the last seconds, and no other was like it: a pause, which says nothing of the pace."""
        *others, longest = sorted(self.intervals) or (0.0,)
        return longest >= MOSTLY * seconds and longest >= STEP_GRACE * max(others, default=0.0)

    @property
    def late(self) -> bool:
        """True if the next step should have come long ago, by how long steps took: only then does its silence say anything."""
        return (self.ago_seconds or 0.0) > max(STEP_GRACE_SECONDS, STEP_GRACE * (self.long_seconds or 0.0))

    @property
    def long_seconds(self) -> float | None:
        """The 95th percentile."""
        return quantile(self.usual, 0.95)


@dataclass(frozen=True)
class Progress:
    """``kind``: moving (steps go on), still (the training thread does not move), busy (it moves, no step is seen), unknown.

    turns_per_second: of a loop that trains and sleeps in every turn, where steps are not counted; 0 for any other.
    """

    kind: str
    basis: str
    thread: int  # tid of the training thread
    steps: StepClock | None = None
    turns_per_second: float = 0.0


def step_clock(history: History, pid: int, seconds: float = MINUTE_SECONDS) -> StepClock | None:
    """The agent's count in one process over the last ``seconds``; None where there is no agent, or steps are out of its sight.

    Those inside of a CUDA graph are: the optimizer is called when the graph is captured, and then never again.
    """
    whole = history.series(r.Steps, pid)
    if not whole:
        return None
    last = whole[-1]
    ago = None if last.reading.step_ago_seconds is None else last.reading.step_ago_seconds + (history.at - last.at)
    if ago is not None and ago > WINDOW_SECONDS and _in_graphs(history, pid, last.reading.tid or pid, ago):
        return None
    series = history.series(r.Steps, pid, seconds=seconds) or whole[-1:]
    intervals = _intervals(series)
    usual = intervals if len(intervals) >= ENOUGH_SAMPLES else _intervals(_newest(whole))[-ENOUGH_SAMPLES:]
    longest = history.once(
        ("longest step", pid), lambda: _longest(history.series(r.Steps, pid, seconds=REMEMBERED_SECONDS))
    )
    return StepClock(
        count=last.reading.count,
        ago_seconds=ago,
        intervals=intervals,
        advanced=last.reading.count - series[0].reading.count,
        usual=usual,
        longest_seconds=max((*usual, longest)) or None,
    )


def steady_steps(history: History, pid: int) -> tuple[float, float]:
    """For how many seconds the agent has counted steps after the warm-up, as far as is remembered, and the longest gap meanwhile."""
    looks = [one for one in history.series(r.Steps, pid) if one.reading.count > WARM_UP_STEPS]
    ended = looks[-1].at - (looks[-1].reading.step_ago_seconds or 0.0) if looks else 0.0
    return (max(0.0, ended - looks[0].at), _longest(looks)) if looks else (0.0, 0.0)


def _intervals(looks: list[Seen[r.Steps]]) -> tuple[float, ...]:
    """What these looks tell, but for the warm-up: only where the first steps of the process are among them, and a tenth at most."""
    told = [value for one in looks for value in one.reading.interval_seconds]
    before = looks[0].reading.count - len(looks[0].reading.interval_seconds) - 1 if looks else 0
    return tuple(told[max(0, min(len(told) // 10, WARM_UP_STEPS) - max(0, before)) :])


def _newest(looks: list[Seen[r.Steps]]) -> list[Seen[r.Steps]]:
    """The newest looks that tell of enough steps, or all."""
    told = accumulate(len(one.reading.interval_seconds) for one in reversed(looks))
    needed = next((number for number, steps in enumerate(told, 1) if steps >= ENOUGH_SAMPLES), len(looks))
    return looks[-needed:]


def _longest(looks: list[Seen[r.Steps]]) -> float:
    """The longest step that they tell of. Of more steps than one look lists it knows the longest."""
    beyond = [
        later.reading.longest_seconds or 0.0
        for earlier, later in pairwise(looks)
        if earlier.reading.count >= WARM_UP_STEPS
    ]
    return max((*_intervals(looks), *beyond), default=0.0)


def stepped(history: History, pid: int) -> list[tuple[float, float]]:
    """From when to when the agent's count grew at its usual pace; a longer time from step to step holds something else as well."""
    newest: dict[int, float] = {}
    for one in history.series(r.Steps, pid):
        if one.reading.step_ago_seconds is not None:
            newest.setdefault(one.reading.count, one.at - one.reading.step_ago_seconds)
    between = list(pairwise(newest.values()))
    usual = median(end - begin for begin, end in between) or 0.0
    return [(begin, end) for begin, end in between if end - begin <= LONGER * usual]


def _in_graphs(history: History, pid: int, tid: int, ago_seconds: float) -> bool:
    """True if graphs are replayed since the last step, and steps were not counted between replays (of their forward pass) before."""
    since = history.at - ago_seconds
    lately = history.series(r.Stack, pid, tid, seconds=ago_seconds)
    if not any(one.at - one.reading.span_seconds >= since and _replays(one.reading) for one in lately):
        return False
    first = next(one.at for one in history.series(r.Stack, pid, tid) if _replays(one.reading))
    steps = [one for one in history.series(r.Steps, pid) if one.at > first]
    # The steps before another graph is captured fall into one or two looks.
    return sum(later.reading.count > earlier.reading.count for earlier, later in pairwise(steps)) < FEW_TIMES


def _replays(stack: r.Stack) -> bool:
    return any_tag(tags(stack), "graph_replay")


def progress(history: History, rank: Member, job: Job) -> Progress:
    """Judge one rank."""
    tid = training_thread(history, rank)
    steps = step_clock(history, rank.pid)
    if steps is not None and steps.ago_seconds is not None:
        if not steps.late:
            return Progress("moving", f"step {steps.count} was {duration(steps.ago_seconds)} ago", tid, steps)
    moved = motion(history, rank.pid, tid)
    if steps is None and (often := _paced(history, rank.pid, tid, moved)):
        basis = f"it wakes {often:.2g} times a second from a sleep in a loop that trains"
        return Progress("moving", basis, tid, steps, often)
    device = served(history, rank.pid, tid, job)
    if device is not None and not device[0]:
        return Progress("still", device[1], tid, steps)
    within = turns_within(history, rank.pid, tid)
    if within is not None and not moved.frozen:
        return Progress("busy", f"one loop of one {within.called} in {within.samples} samples", tid, steps)
    late = steps is not None and steps.ago_seconds is not None
    recent = profile(history, rank.pid, tid, seconds=LATELY_SECONDS)
    evaluations = evaluated(history, rank.pid, tid, LATELY_SECONDS) if late and not moved.frozen else 0
    if evaluations:
        return Progress("moving", f"{evaluations} evaluations within one optimizer step", tid, steps)
    if device is not None:  # late steps are long ones then
        return Progress("busy" if late else "moving", device[1], tid, steps)
    if moved.frozen:
        return Progress("still", "the training thread does not run", tid, steps)
    stands = moved.samples >= STILL_SAMPLES and moved.steady_share >= STILL_SHARE and moved.seconds >= 0.9
    if stands and not _steps_between(recent):
        return Progress("still", f"one stack in {moved.steady_share:.0%} of {moved.samples} samples", tid, steps)
    if recent.samples < STILL_SAMPLES:
        if not late and _steps_seen(lasting(history, rank.pid, tid, LATELY_SECONDS)):
            return Progress("moving", "it runs, as when steps were last looked at", tid, steps)
        return Progress("unknown", "too few samples of the training thread", tid, steps)
    if not late and _steps_seen(recent):
        return Progress("moving", f"{recent.samples} samples of its steps", tid, steps)
    return Progress("busy", f"no step in {recent.samples} samples", tid, steps)


def _paced(history: History, pid: int, tid: int, moved: Motion) -> float:
    """How often a second a thread wakes whose loop trains and then sleeps in each turn: such steps may be too short to be sampled.

    0 for any other thread: one that sleeps because something has failed, or is not there yet, may never come to train.
    """
    seen, often = history.latest(r.Stack, pid, tid), moved.switches_per_second or 0.0
    line = line_of(history, user_frame(seen.reading)) if seen is not None else None
    paced = line is not None and line.steps_each_turn and "sleep" in names(line.calls)
    return often if paced and often * moved.seconds >= TWICE else 0.0


def _steps_seen(seen: Profile) -> bool:
    """True if the samples are of steps that go on: much of it training code, at several places."""
    at_work = sum(one.reading.samples for one in seen.sights if trains(one.reading))
    if not any(trains(one.reading) and tags(one.reading) & STEP_TAGS for one in seen.sights):
        return False
    places = {stack_key(one.reading) for one in seen.sights}
    return at_work >= TWICE and len(seen.lines()) + len(places) > 3


def trains(stack: r.Stack) -> bool:
    """True if a stack is at training work, not at the imports or the compilation that some of it begins with."""
    return at_training(stack) and not any_tag(tags(stack), "compile", "import")


def evaluates(stack: r.Stack) -> bool:
    """True if a stack is in a backward pass that an optimizer of torch asked for: L-BFGS makes hundreds of them in one step.

    Lightning's are all of that kind, one in each step.
    """
    return "backward" in tags(stack) and any(map(steps_torch, stack.frames))


def evaluated(history: History, pid: int, tid: int, seconds: float) -> int:
    """How many such passes were met lately, if several of them belong to each step that was made meanwhile; else 0."""
    passes = profile(history, pid, tid, seconds=seconds).turns(evaluates)
    return passes if passes >= max(FEW_TIMES, TWICE * _made(history, pid, seconds)) else 0


def _made(history: History, pid: int, seconds: float) -> int:
    """Steps of the last ``seconds``, as far as they were counted or listed one by one: where these end there were more."""
    clock, whole = step_clock(history, pid, seconds), history.series(r.Steps, pid)
    if clock is None or clock.ago_seconds is None:
        return 0
    ago = accumulate((clock.ago_seconds, *reversed(whole[-1].reading.interval_seconds)))
    return max(clock.advanced, sum(one <= seconds for one in ago))


def _steps_between(recent: Profile) -> bool:
    """True if a thread that nearly always waits was seen at training work in between, twice or more and in different lines."""
    stacks = {
        stack_key(one.reading)
        for one in recent.sights
        if trains(one.reading) and any_tag(tags(one.reading), "backward", "optimizer", "forward")
    }
    return len(stacks) >= TWICE


def besides_training(seen: Profile) -> r.Frame | None:
    """The program's own line where a thread is most when it is not at training work; failing that, its busiest line."""
    return seen.top_line(lambda stack: not trains(stack)) or seen.top_line()
