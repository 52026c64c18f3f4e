"""What every rule about a slow run or a long phase shares: how much of the time is lost, how sure that makes us, and the finding itself.

A rule gives facts; the sentences of a cause are a ``Line`` beside it. A cause that is a mere part of the training thread's time is a
``Part``: bins of its budget, judged by the one method that all of them have.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, NamedTuple

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import saturated
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import restarts
from perfwatch.triage.moving.motion import Motion, motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.budget import Bin, Budget, budget, is_in
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import CERTAIN, LATELY_SECONDS, LOST_SHARE
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Level
from perfwatch_probes import readings as r

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
    if lost is None:
        return min(confidence, UNSEEN_MACHINE)
    return confidence if lost >= LOST_SHARE else min(confidence, NOTED)


def behind(lost: float | None) -> float:
    """How much a cause explains that stands behind whatever else is slow: all of it, if it costs time at all."""
    return 1.0 if lost is None or lost >= LOST_SHARE else lost


def asleep_share(case: Case, rank: Member, seconds: float = WINDOW_SECONDS) -> float | None:
    """Share of the time that a training thread neither runs nor waits for a CPU; None where it is not known."""
    moved = motion(case.history, rank.pid, case.progress[rank.pid].thread, seconds)
    return None if moved.run_share is None else max(0.0, 1.0 - moved.run_share - (moved.delay_share or 0.0))


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


class _Words(Formatter):
    """``str.format`` with two more forms: ``{seconds:time}`` as a time span, ``{seconds:step}`` as one of a step."""

    def format_field(self, value: Any, form: str) -> str:
        """One fact in words."""
        if form in ("time", "step"):
            return duration(value, 3 if form == "step" else 2)
        return str(super().format_field(value, form))


_WORDS = _Words()


def worded(text: str, known: Mapping[str, Any]) -> str:
    """A sentence with its facts in place of their names."""
    return _WORDS.vformat(text, (), known)


class Saw(NamedTuple):
    """One observation in the words of a line: ``of`` is the entity, and ``share`` the fact that it needs to be worth telling."""

    witness: str
    claim: str
    observed: str
    expected: str = ""
    of: str = "pid {pid}"
    share: str = ""

    def said(self, known: dict[str, Any]) -> tuple[str, str, str, str, str]:
        """Witness, entity, claim, observed and expected in words."""
        witness, of, claim, observed, expected = (
            worded(text, known) for text in (self.witness, self.of, self.claim, self.observed, self.expected)
        )
        return witness, of, claim, observed, expected


Facts = dict[str, Any]  # what the names in sentences stand for


def samples(claim: str, expected: str, share: str = "lost", optional: bool = False) -> Saw:
    """What a share of the samples of the training thread shows; ``optional``: it may be that none does."""
    return Saw(
        "stack", claim, f"{{{share}:.0%}} of {{seen.samples}} samples", expected, share=share if optional else ""
    )


@dataclass(frozen=True)
class Line:
    """What is said of a cause: sentences with ``{names}`` for facts, the causes that it is not, and what to do next."""

    cause: Cause
    summary: str
    saw: tuple[Saw, ...] = ()
    but: tuple[tuple[str, str], ...] = ()
    next: tuple[str, ...] = ()

    def finding(
        self,
        case: Case,
        culprits: tuple[Culprit, ...],
        confidence: float,
        /,
        *,
        before: tuple[Evidence, ...] = (),
        more: tuple[Evidence, ...] = (),
        **facts: Any,
    ) -> Finding:
        """The finding with these facts; ``before`` and ``more`` is evidence that its sentences do not have."""
        known = {"pid": culprits[0].pid if culprits else 0, **facts}
        evidence = (case.saw(*one.said(known)) for one in self.saw if not one.share or known[one.share])
        return Finding(
            cause=self.cause.name,
            state=self.cause.state,
            summary=worded(self.summary, known),
            confidence=confidence,
            owner=self.cause.owner,
            culprits=culprits,
            evidence=(*before, *evidence, *more),
            alternatives=tuple(
                Alternative(cause=worded(name, known), refuted_by=worded(why, known)) for name, why in self.but
            ),
            next=tuple(worded(text, known) for text in self.next),
        )


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
    """A cause that is a part of the training thread's time: which bins, how often it comes back, and what else must hold."""

    line: Line
    bins: tuple[Bin, ...]
    times: int = 1
    given: Callable[[Case, Member, Budget], bool] = lambda *_: True
    ceiling: float = CERTAIN

    def judge(self, case: Case) -> Finding | None:
        """The finding about the rank that loses most, if that is worth a verdict."""
        found = worst(case, lambda rank, _: budget(case, rank).share(*self.bins))
        if found is None:
            return None
        rank, seen, lost = found
        holds, spent = is_in(case, *self.bins), budget(case, rank)
        times = len(seen.runs(holds))
        if times < self.times or not self.given(case, rank, spent):
            return None
        frame, sure = spent.of(*self.bins).top_line(), min(certainty(lost), self.ceiling)
        return slow(case, self.line, rank, lost, frame=frame, confidence=sure, seen=seen, times=times)


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

    def written_bytes(self, case: Case) -> int:
        """Bytes that its thread itself wrote over the window."""
        grown = case.history.growth(
            r.Thread, self.rank.pid, self.tid, of=lambda t: t.written_chars, seconds=PHASE_SECONDS
        )
        return int(grown[0]) if grown else 0

    def grown_bytes(self, case: Case) -> int:
        """Bytes that this rank's files grew by, or its thread wrote if that is more, over the window."""
        files = 0.0
        for key in case.history.of(r.FileGrowth, self.rank.pid):
            grown = case.history.growth(r.FileGrowth, *key, of=lambda f: float(f.size_bytes), seconds=2 * PHASE_SECONDS)
            files += grown[0] if grown else 0.0
        return max(self.written_bytes(case), int(files))

    def write_calls(self, case: Case) -> int:
        """Write calls of the thread itself over the window (a slow save counts calls, not bytes)."""
        grown = case.history.growth(
            r.Thread, self.rank.pid, self.tid, of=lambda t: t.write_calls, seconds=PHASE_SECONDS
        )
        return int(grown[0]) if grown else 0

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
    alone = line is not None and line.loops[:1] == ("while",) and not line.calls_unnamed
    return min(Level.MEDIUM, confidence) if alone and line and names(line.loop_calls).isdisjoint(TRAINS) else confidence
