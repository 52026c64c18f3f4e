"""What the rules about slow GPU jobs share: a rank that goes on, its card over the same time, and who waits for whom.

While a card works the host may do what it likes: time is lost only while no kernel is resident, and only that much of it can
be any cause's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from perfwatch.triage.cards.baseline import baseline
from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.neighbours import unused
from perfwatch.triage.cards.spinning import spins_on
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.progress import trains
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.in_compiler import in_compiler
from perfwatch.triage.shares.own_work import own_python, own_work
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.starving import awaits_data
from perfwatch.triage.slowness import WINDOW_SECONDS, certainty
from perfwatch.triage.waits.devices import engine_share, in_sync
from perfwatch.triage.words.frames import any_tag, show, tags, user_frame
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding
from perfwatch_probes import readings as r

LONGEST_SECONDS = 600.0
FEW_SAMPLES = 20
FEW_SECONDS = 3.0  # of looks at the card
RETURNS = 3  # pieces of work between which the card idled: one or two may be the end of a phase
UNSEEN_CARD = 0.75  # confidence where heat, a degraded link or a neighbour could not be excluded
NOT_MONITORED = 0.75  # confidence where utilisation stands in for the card's units
UNITS_UNSEEN = 0.65  # ... and of a healthy run: utilisation is as high where the card waits, or does the wrong thing
BY_DEVICE = 0.75  # ... and where it is not known whose cards they are
PLAIN_PYTHON = 0.15  # of samples: own work is then data or logging, not the launching of kernels
COPY_CALLS = frozenset({"to", "cuda", "copy_", "send_to_device", "move_data_to_device"})
OTHER_WORK = (
    "empty_cache",
    "save",
    "load",
    "import",
    "compile",
    "log",
    "tracker",
    "gc",
    "collective",
    "http",
    "fetch",
    "collate",
)


@dataclass(frozen=True)
class Accelerated:
    """One rank that goes on, and the busiest of its cards."""

    rank: Member
    card: Regime
    profile: Profile
    runs: float  # of a core, by the training thread and by torch's engine for it; waiting for a core included
    certain: bool  # whether the card is known to be this rank's

    @property
    def ceiling(self) -> float:
        """The most that can be said with what is seen of the card."""
        monitored = 1.0 if self.card.source == "gpm" else NOT_MONITORED
        return min(monitored, 1.0 if self.certain else BY_DEVICE)


def accelerated(case: Case) -> list[Accelerated]:
    """Every rank that makes progress with a card that was looked at for long enough, and computes on it as far as is known."""
    return case.history.once("accelerated", lambda: _accelerated(case))


def _accelerated(case: Case) -> list[Accelerated]:
    found = []
    for rank in case.ranks:
        now = case.progress[rank.pid]
        seconds = min(WINDOW_SECONDS, trained_for(case, rank))
        cards = regimes(case.history, rank.pid, seconds)
        if now.kind != "moving" or not cards or cards[0].seconds < FEW_SECONDS or unused(case.history, cards[0].uuid):
            continue
        if spins_on(case.history, cards[0].uuid):
            continue
        moved = motion(case.history, rank.pid, now.thread, seconds)
        runs = moved.wanted_share
        runs += engine_share(case.history, rank.pid, seconds)
        certain = cards_of(case.history, rank.pid).certain
        found.append(Accelerated(rank, cards[0], case.profile(rank, seconds), runs, certain))
    return found


def trained_for(case: Case, rank: Member) -> float:
    """Seconds since the first step or, without the agent's count, since training code was first seen; at most ten minutes.

    While a job starts its card has nothing to do, and that is nobody's fault.
    """
    for one in case.history.series(r.Steps, rank.pid):
        if one.reading.count > 0:
            return case.at - one.at + sum(one.reading.interval_seconds)
    for seen in case.profile(rank, LONGEST_SECONDS).sights:
        if trains(seen.reading):
            return case.at - seen.at + seen.reading.span_seconds
    return LONGEST_SECONDS


def since_first_step(case: Case, rank: Member, seen: Profile) -> Profile:
    """The samples of the window from the first step on: what was done before it, however long it took, is done once."""
    training = trained_for(case, rank)
    return seen if training >= WINDOW_SECONDS else case.profile(rank, training)


def surroundings_known(case: Case, uuid: str) -> bool:
    """Whether it could be seen that nothing holds the card itself back: its clocks and link, and who else uses it."""
    described = case.history.latest(r.Gpu, uuid) is not None
    samples = case.history.series(r.GpuSample, uuid, seconds=WINDOW_SECONDS)
    clocked = any(one.reading.reasons is not None and one.reading.sm_clock_mhz is not None for one in samples)
    listed = any(key[0] == uuid for key in case.history.entities(r.GpuProcess))
    return described and clocked and listed


def has_gaps(card: Regime) -> bool:
    """Whether a card waits between kernels, or idles and was given work again and again: what holds it back is of each step."""
    return (card.kind == "wait" and not card.paused_once) or (card.kind == "idle" and card.returns >= RETURNS)


def sync_share(case: Case, seen: Profile) -> float:
    """Share of the samples at a call that waits for the device."""
    return seen.share_where(partial(in_sync, case.history))


def in_copy(history: History, stack: r.Stack) -> bool:
    """Whether a stack is at a line that moves data to the device."""
    if "device_copy" in tags(stack):
        return True
    frame = user_frame(stack)
    if frame is None or stack.frames[0] != frame:
        return False
    seen = history.latest(r.SourceLine, frame.file, frame.line)
    return seen is not None and any(call.rsplit(".", 1)[-1] in COPY_CALLS for call in seen.reading.calls)


def launching_share(case: Case, seen: Profile) -> float:
    """Share of the samples in which the thread may launch kernels: neither in other known work, nor waiting for anything."""
    own_is_data = seen.share_where(lambda stack: own_python(case.history, stack)) >= PLAIN_PYTHON
    compiled = in_compiler(case.history, seen)

    def launches(stack: r.Stack) -> bool:
        if awaits_data(stack) or any_tag(tags(stack), *OTHER_WORK) or in_copy(case.history, stack) or compiled(stack):
            return False
        return not in_sync(case.history, stack) and not (own_is_data and own_work(stack))

    return seen.share_where(launches)


def line_of(seen: Profile, holds: Callable[[r.Stack], bool]) -> str | None:
    """The program's own line for most of the samples for which something holds."""
    return show(seen.top_line(holds))


def monitored(case: Case, one: Accelerated, claim: str, expected: str) -> Evidence:
    """What the card's units show, as a piece of evidence, beside what they showed earlier in this run, if that is known."""
    before = baseline(case.history, one.card.uuid, WINDOW_SECONDS).shown()
    return case.saw(one.card.source, name_of(case.history, one.card.uuid), claim, one.card.shown(), before or expected)


def slow_on_gpu(
    case: Case,
    cause: Cause,
    one: Accelerated,
    *,
    lost: float,
    summary: str,
    evidence: tuple[Evidence, ...],
    next: tuple[str, ...],
    frame: str | None = None,
    confidence: float | None = None,
    explains: float | None = None,
    alternatives: tuple[Alternative, ...] = (),
) -> Finding:
    """A slow finding about a rank and its card; ``explains`` ranks it among others, the share of time lost unless given."""
    how = cards_of(case.history, one.rank.pid).how
    unlisted = not case.history.of(r.GpuProcess, one.card.uuid)
    if not one.certain:
        said = case.saw(
            "binding",
            f"pid {one.rank.pid}",
            "whose card it is was inferred",
            how or "not known",
            "listed by the driver",
        )
        evidence = (*evidence, said)
    return Finding(
        cause=cause.name,
        state="slow",
        summary=summary,
        confidence=round(min(one.ceiling, UNSEEN_CARD if unlisted else 1.0, confidence or certainty(lost)), 2),
        owner=cause.owner,
        culprits=(
            Culprit(pid=one.rank.pid, rank=one.rank.rank, frame=frame, gpu=index_of(case.history, one.card.uuid)),
        ),
        evidence=evidence,
        alternatives=alternatives,
        next=next,
        lost_share=round(lost if explains is None else explains, 3),
    )
