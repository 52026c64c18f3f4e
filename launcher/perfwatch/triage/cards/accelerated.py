"""A rank that makes steps, its card over the same time, and which of the two waits for the other.

While a card works the host may do what it likes: time is lost only while no kernel is resident, and only that much of it can
be lost to any cause.
"""

from dataclasses import dataclass, replace
from typing import Any

from perfwatch.triage.cards.gpu import FEW_SECONDS, Regime, baseline, regimes, spins_on, unseen
from perfwatch.triage.cards.whose import cards_of, index_of, name_of, shared, unused
from perfwatch.triage.case import Case
from perfwatch.triage.history import once
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.progress import trains
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Line
from perfwatch.triage.shares.budget import WRITING, Bin, Budget, bin_of, spent, trained_for
from perfwatch.triage.shares.own_work import own_python, own_work
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import NOTABLE
from perfwatch.triage.slowness import WINDOW_SECONDS, Phase, certainty, slow
from perfwatch.triage.waits.devices import engine_share, in_sync
from perfwatch.triage.words import code
from perfwatch.triage.words.frames import tags
from perfwatch.verdict import Culprit, Evidence, Finding, Level
from perfwatch_probes import readings as r

UNITS_UNSEEN = Level.MEDIUM  # of a healthy run: utilisation is as high where the card waits, or does the wrong thing
READ_BACK = frozenset({"item", "cpu", "synchronize"})  # what torch alone has; numpy has ``unique`` and ``tolist``


@dataclass(frozen=True)
class Accelerated:
    """One rank that goes on, and the busiest of its cards."""

    rank: Member
    card: Regime
    profile: Profile
    runs: float  # of a core, by the training thread and by torch's engine for it; waiting for a core included
    certain: bool  # the card is known to be this rank's

    def spent(self, case: Case) -> Budget:
        """Where its training thread spends its time."""
        return spent(case, self.profile)

    @property
    def ceiling(self) -> float:
        """The most that can be said with what is seen of the card."""
        return 1.0 if self.certain and self.card.source == "gpm" else Level.MEDIUM


@once
def accelerated(case: Case) -> list[Accelerated]:
    """Every rank that makes steps with a card that was sampled for long enough, and computes on it as far as is known."""
    found = []
    for rank in case.ranks:
        now = case.progress[rank.pid]
        seconds = min(WINDOW_SECONDS, trained_for(case, rank))
        cards = regimes(case.history, rank.pid, seconds)
        if now.kind != "moving" or not cards or cards[0].seconds < FEW_SECONDS:
            continue
        uuid = cards[0].uuid
        if unused(case.history, uuid) or spins_on(case.history, uuid):
            continue
        if shared(case.history, uuid) and not _steps_are_seen(case, rank):
            continue  # the card may work for another job alone
        runs = motion(case.history, rank.pid, now.thread, seconds).wanted_share
        runs += engine_share(case.history, rank.pid, seconds)
        certain = cards_of(case.history, rank.pid).certain
        found.append(Accelerated(rank, cards[0], case.profile(rank, seconds), runs, certain))
    return found


def _steps_are_seen(case: Case, rank: Member) -> bool:
    """True if steps are counted, or the training thread is seen at several places of training."""
    if (steps := case.progress[rank.pid].steps) is not None:
        return not steps.late
    seen = case.profile(rank, WINDOW_SECONDS).sights
    return len({one.reading.frames[:1] for one in seen if trains(one.reading)}) > 1


def sync_share(case: Case, seen: Profile) -> float:
    """Share of the samples at a call that waits for the device."""
    return spent(case, seen).share(Bin.GPU)


# Work that launches no kernels, and waits.
ELSEWHERE = frozenset(
    {
        *(Bin.DATA, Bin.COMPILING, Bin.STARTING, Bin.RANKS, Bin.SAVING, Bin.COPYING_MODEL, Bin.NETWORK, Bin.GARBAGE),
        *(Bin.EMPTYING, Bin.LOADING, Bin.DRAWING, Bin.COPYING, Bin.GPU, *WRITING),
    }
)


def launching_share(case: Case, seen: Profile) -> float:
    """Share of the samples in which the thread may launch kernels: neither in other known work, nor waiting for anything."""
    own_is_data = seen.share_where(lambda stack: own_python(case.history, stack)) >= NOTABLE

    def launches(stack: r.Stack) -> bool:
        return bin_of(case, stack) not in ELSEWHERE and not (own_is_data and own_work(stack))

    return seen.share_where(launches)


def monitored(case: Case, one: Accelerated, claim: str, expected: str) -> Evidence:
    """What the card's units show, as a piece of evidence, beside what they showed earlier in this run."""
    before = baseline(case.history, one.card.uuid, WINDOW_SECONDS)
    return case.saw(one.card.source, name_of(case.history, one.card.uuid), claim, one.card.shown(), before or expected)


def inferred(case: Case, pid: int) -> Evidence:
    """That the driver does not list a process on its card."""
    how = cards_of(case.history, pid).how or "not known"
    return case.saw("binding", f"pid {pid}", "its card was inferred", how, "listed by the driver")


UNITS = "{shown}"


def slow_on_gpu(
    case: Case,
    line: Line,
    one: Accelerated,
    lost: float,
    /,
    *,
    frame: str | None = None,
    confidence: float | None = None,
    explains: float | None = None,
    more: tuple[Evidence, ...] = (),
    **facts: Any,
) -> Finding:
    """A slow finding about a rank and its card; ``explains`` ranks it among others, the share of time lost unless given."""
    unlisted = not case.history.of(r.GpuProcess, one.card.uuid)
    more = more if one.certain else (*more, inferred(case, one.rank.pid))
    culprit = Culprit(pid=one.rank.pid, rank=one.rank.rank, frame=frame, gpu=index_of(case.history, one.card.uuid))
    sure = min(one.ceiling, Level.MEDIUM if unlisted else 1.0, confidence or certainty(lost))
    before = baseline(case.history, one.card.uuid, WINDOW_SECONDS)
    known = {"card": one.card, "name": name_of(case.history, one.card.uuid), "seen": one.profile, "at": frame}
    saw = (each._replace(expected=before or each.expected) if each.observed == UNITS else each for each in line.saw)
    facts = {**known, "shown": one.card.shown(), "culprits": (culprit,), "confidence": sure, "more": more, **facts}
    return slow(case, replace(line, saw=tuple(saw)), one.rank, lost, explains=explains, **facts)


def drives_a_card(case: Case, phase: Phase) -> bool:
    """True if a rank that computes on the host has work on its GPU, or its line waits for that: the value is no result of the CPU's."""
    pid, source = phase.rank.pid, code.line_of(case.history, phase.profile.top_line())
    stack, own = case.chains[pid].start.stack, cards_of(case.history, pid)
    reads = source is not None and bool(code.names(source.calls) & READ_BACK) and in_sync(case.history, stack)
    reads = reads or (stack is not None and "device_sync" in tags(stack))
    if reads and (own.uuids or unseen(case.history, pid)):
        return True
    return any(one.kind == "spin" or (own.certain and one.kind != "idle") for one in regimes(case.history, pid))
