"""What every rule about a slow run or a long phase shares: how much of the time is lost, how sure that makes us, and the finding itself.

A cause that is a mere part of the training thread's time is a ``Part``: bins of its budget, judged by the one method that all of them
have.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from perfwatch.triage.cards.gpu import saturated
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import restarts
from perfwatch.triage.moving.motion import Motion, motion
from perfwatch.triage.moving.progress import LONGER, StepClock
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Facts, Line
from perfwatch.triage.shares.budget import Bin, Budget, budget, is_in
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import LATELY_SECONDS, LOST_SHARE, MOSTLY, NEARLY_ALL, TWICE
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, show, tags, user_frame
from perfwatch.verdict import Culprit, Finding, Level
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Frame, Stack

WINDOW_SECONDS = LATELY_SECONDS
FEW_SAMPLES = 30
RESIDUE = 0.5  # of what it costs a cause explains that others may be behind, or that makes every other cause worse
CLEAR_SHARE, PLAIN_SHARE, SURE_SHARE = 0.22, 0.35, 0.45  # from these on it is high, certain, explains all
NOTED = Level.LOW  # for what was seen and cost no time that could be measured: reported beside a verdict
UNSEEN_MACHINE = Level.MEDIUM  # at most, if throttling, memory and /dev/shm are unknown


def certainty(lost: float) -> Level:
    """How sure a cause is by the share of the time that it costs."""
    return Level.CERTAIN if lost >= PLAIN_SHARE else Level.HIGH if lost >= CLEAR_SHARE else Level.MEDIUM


def noted(lost: float | None, confidence: float) -> float:
    """The confidence in a state of the machine or of the job that is there, whatever it costs: a mere note unless time is lost."""
    return UNSEEN_MACHINE if lost is None else confidence if lost >= LOST_SHARE else NOTED


def behind(lost: float | None) -> float:
    """How much a cause explains that stands behind whatever else is slow: all of it, if it costs time at all."""
    return 1.0 if lost is None or lost >= LOST_SHARE else lost


def sleeps_for_a_lock(case: Case, rank: Member, lost: float) -> bool:
    """True if most of a share of the time may be waits for the holder of a lock: asleep in a futex without a timeout."""
    waits = [one.reading.wait for one in case.looks(rank, WINDOW_SECONDS)]
    asleep = sum(wait is not None and wait.kind == "futex" and wait.forever for wait in waits)
    return asleep >= MOSTLY * lost * len(waits) > 0


def working(case: Case) -> list[tuple[Member, Profile]]:
    """Living ranks that are not known to stand still, with enough samples of their training threads.

    A rank whose card is busy all the time is left out: whatever its host does costs nothing. (Of several ranks' cards a wait
    for each other would count as busy, so there all stay.)
    """
    found = [(rank, case.profile(rank, WINDOW_SECONDS)) for rank in case.ranks if _goes_on(case, rank)]
    alone = case.job.apart or (len(case.ranks) == 1 and (case.job.world_size or 1) == 1)
    return [
        (rank, seen)
        for rank, seen in found
        if seen.samples >= FEW_SAMPLES and not (alone and saturated(case.history, rank.pid, WINDOW_SECONDS))
    ]


def _goes_on(case: Case, rank: Member) -> bool:
    """True if a training thread moves, or at least its own reads and writes go through while it waits for them."""
    now = case.progress[rank.pid]
    return now.kind != "still" or bool(motion(case.history, rank.pid, now.thread).io_calls)


def worst(case: Case, lost: Callable[[Member, Profile], float]) -> tuple[Member, Profile, float] | None:
    """The rank that loses most by some measure, if that is worth a verdict."""
    scored = [(rank, seen, lost(rank, seen)) for rank, seen in working(case)]
    best = max(scored, key=lambda one: one[2], default=None)
    return best if best is not None and best[2] >= LOST_SHARE else None


def slow(
    case: Case,
    line: Line,
    rank: Member,
    lost: float,
    /,
    *,
    frame: r.Frame | None = None,
    culprits: tuple[Culprit, ...] | None = None,
    confidence: float | None = None,
    explains: float | None = None,
    decides_in_seconds: float = 0.0,
    **facts: Any,
) -> Finding:
    """A slow finding; the culprit is the rank's own line unless others are given.

    ``explains`` ranks it among other slow findings: the share of time lost unless given, 1 for a cause that is behind them.
    Where the machine was not seen, such a cause cannot be excluded, and the confidence is capped.
    """
    confidence = certainty(lost) if confidence is None else confidence
    if not case.history.entities(r.Cgroup) or case.latest_host() is None:
        confidence = min(confidence, UNSEEN_MACHINE)
    own = (Culprit(pid=rank.pid, rank=rank.rank, frame=show(frame)),)
    facts = {"pid": rank.pid, "lost": lost, "at": show(frame), **facts}
    return msgspec.structs.replace(
        line.finding(case, own if culprits is None else culprits, confidence, **facts),
        state="slow",
        lost_share=round(lost if explains is None else explains, 3),
        decides_in_seconds=round(decides_in_seconds, 1),
    )


@dataclass(frozen=True)
class Part:
    """A cause that is a part of the training thread's time: which bins, how often it comes back, and what else must hold.

    ``lost`` is its share where the bins alone do not tell it: counters of the kernel or of the card tell of the same. ``facts`` are
    those that its sentences name beside ``lost``, ``at``, ``seen`` and ``times``. ``weight``: which of the ranks that lose alike it is.
    """

    line: Line
    bins: tuple[Bin, ...]
    times: int = 0
    given: Callable[[Case, Member, Budget], bool] = lambda *_: True
    ceiling: float = Level.CERTAIN
    lost: Callable[[Case, Member, Budget], float] | None = None
    facts: Callable[[Case, Member, Budget, float], Facts] = lambda *_: {}
    weight: Callable[[Case, Member], float] = lambda *_: 0.0

    def judge(self, case: Case) -> Finding | None:
        """The finding about the rank that loses most, if that is worth a verdict."""
        share = self.lost or (lambda case, rank, spent: spent.share(*self.bins))
        shares = [(rank, seen, share(case, rank, budget(case, rank))) for rank, seen in working(case)]
        least = max(LOST_SHARE, NEARLY_ALL * max((one[2] for one in shares), default=0.0))
        alike = [one for one in shares if one[2] >= least]
        if not alike:
            return None
        rank, seen, lost = max(alike, key=lambda one: (self.weight(case, one[0]), one[2]))
        spent = budget(case, rank)
        times = len(seen.runs(is_in(case, *self.bins)))
        if times < self.times or not self.given(case, rank, spent):
            return None
        facts = Facts(frame=spent.of(*self.bins).top_line() or seen.top_line(), seen=seen, times=times)
        facts |= Facts(confidence=min(certainty(lost), self.ceiling)) | self.facts(case, rank, spent, lost)
        return slow(case, self.line, rank, lost, **facts)


# Long phases that are normal

PHASE_SECONDS, PHASE_SAMPLES = 6.0, 6  # of what a rank is at now


@dataclass(frozen=True)
class Phase:
    """What one rank's training thread has been at for the last seconds."""

    rank: Member
    tid: int
    profile: Profile
    motion: Motion

    @property
    def runs(self) -> float:
        """Share of a core, waiting for one included."""
        return self.motion.wanted_share

    def grown(self, case: Case, of: Callable[[r.Thread], float | None]) -> int:
        """By how much a counter of its thread grew over the window."""
        grown = case.history.growth(r.Thread, self.rank.pid, self.tid, of=of, seconds=PHASE_SECONDS)
        return int(grown[0]) if grown else 0

    def grown_bytes(self, case: Case) -> int:
        """Bytes that this rank's files grew by, or its thread wrote if that is more, over the window."""
        grow = partial(case.history.growth, r.FileGrowth, of=lambda f: float(f.size_bytes), seconds=2 * PHASE_SECONDS)
        files = (grown[0] for key in case.history.of(r.FileGrowth, self.rank.pid) if (grown := grow(*key)))
        return max(self.grown(case, lambda thread: thread.written_chars), int(sum(files)))

    def finding(self, case: Case, line: Line, confidence: float, /, **facts: Any) -> Finding:
        """A busy finding about this rank."""
        frame = self.profile.top_line()
        culprit = Culprit(pid=self.rank.pid, rank=self.rank.rank, tid=self.tid, frame=show(frame))
        found = line.finding(case, (culprit,), confidence, seen=self.profile, runs=self.runs, **facts)
        return msgspec.structs.replace(found, summary=found.summary + (f" at {show(frame)}" if frame else ""))


def phases(case: Case, moving: bool = False) -> Iterator[Phase]:
    """Every living rank that makes no step now and was looked at often enough; none while the launcher restarts them.

    A rank that waits for the GIL, which somebody else keeps, is in no phase of its own.

    With ``moving``, those that seem to make steps as well.
    """
    if restarts(case) is not None:
        return
    for rank in case.ranks:
        now = case.progress[rank.pid]
        seen = case.profile(rank, PHASE_SECONDS)
        if rank.pid in case.chains and "gil" in case.chains[rank.pid].through:
            continue
        if (moving or now.kind != "moving") and seen.samples >= PHASE_SAMPLES:
            yield Phase(rank, now.thread, seen, motion(case.history, rank.pid, now.thread, PHASE_SECONDS))


TRAINS = frozenset("backward step zero_grad forward fit train train_step training_step".split())


def repeated(case: Case, frame: r.Frame | None, confidence: float) -> float:
    """The confidence in a save or a download, less where its line turns in a ``while`` loop in which nothing trains.

    It may be tried again and again, and fail or be found wanting each time.
    """
    line = line_of(case.history, frame)
    alone = line is not None and line.loops[:1] == ("while",) and names(line.loop_calls).isdisjoint(TRAINS)
    return Level.MEDIUM if alone else confidence


# Phases that come back between steps, and what they cost over whole periods: a window of any other length holds now one more of them,
# now one less.

LONG_SECONDS = 120.0  # in which phases of a quarter of a minute come back
STEP_TAGS = ("backward", "optimizer", "forward")


def recurrent(case: Case, rank: Member, seen: Profile, holds: Callable[[Stack], bool]) -> tuple[int, float]:
    """How often something came back between steps, and the share of whole periods that it takes; 0 where it did not come back."""
    phases = _separate(seen, holds)
    if len(phases) < TWICE:
        return len(phases), 0.0
    shares = (seen.share_where(holds), _whole_periods(seen, phases).share_where(holds))
    return len(phases), min(*shares, _share_of_long_steps(case, rank, len(phases)))


def is_at(frame: Frame | None, stack: Stack) -> bool:
    """True if a stack is in the same function of the program's own as some frame."""
    own = user_frame(stack)
    return own is not None and frame is not None and (own.function, own.file) == (frame.function, frame.file)


def is_apart(case: Case, rank: Member, seen: Profile, holds: Callable[[Stack], bool]) -> bool:
    """True if something comes between steps and is no part of each: it lasts for several of them, and steps are long as often."""
    steps = case.steps(rank, LONG_SECONDS)
    usual = (steps.median_seconds if steps is not None else None) or 0.0
    longest = max((one.reading.span_seconds for one in seen.sights if holds(one.reading)), default=0.0)
    if steps is None or not usual or longest < LONGER * usual:
        return False
    return len(_late(steps)) >= len(_separate(seen, holds)) - 1  # the last one may be under way


def _separate(seen: Profile, holds: Callable[[Stack], bool]) -> list[tuple[int, int]]:
    """The first and the last sample of each phase: one of training lies between two of them. One save may have many files."""
    found: list[tuple[int, int]] = []
    trained = True
    for number, one in enumerate(seen.sights):
        if holds(one.reading):
            first = number if trained else found[-1][0]
            found[len(found) - (not trained) :] = [(first, number)]
            trained = False
        elif any_tag(tags(one.reading), *STEP_TAGS):
            trained = True
    return found if seen.seen(*STEP_TAGS) else []


def _whole_periods(seen: Profile, stretches: list[tuple[int, int]]) -> Profile:
    """The samples from the begin of the first phase to that of the last, of two or more.

    Where the first was under way when it was first looked, from end to end.
    """
    (begin, end), (last_begin, last_end) = stretches[0], stretches[-1]
    whole = seen.sights[begin:last_begin]
    if begin == 0 and last_end < len(seen.sights) - 1:
        whole = seen.sights[end + 1 : last_end + 1]
    return Profile(whole, whole[-1].at - whole[0].at)


def _share_of_long_steps(case: Case, rank: Member, times_seen: int) -> float:
    """What long steps cost beyond the usual ones, from the first of them to the last: phases in between cost no more.

    Steps are counted all the time, samples are taken now and then: few of them hold now more of a phase, now less. 1 where the
    steps say nothing: none are counted, or a phase belongs to each.
    """
    steps = case.steps(rank, LONG_SECONDS)
    late = _late(steps) if steps is not None else []
    if steps is None or not late or len(late) < times_seen - 1:
        return 1.0
    # From end to end; where one of the phases is still under way, from begin to begin.
    begin, end = (late[0] + 1, late[-1] + 1) if len(late) >= times_seen else (late[0], len(steps.intervals))
    beyond = sum(steps.intervals[number] - (steps.median_seconds or 0.0) for number in late if begin <= number < end)
    return beyond / sum(steps.intervals[begin:end])


def _late(steps: StepClock) -> list[int]:
    """Which of the steps are long ones."""
    usual = steps.median_seconds or 0.0
    return [number for number, one in enumerate(steps.intervals) if usual and one >= LONGER * usual]
