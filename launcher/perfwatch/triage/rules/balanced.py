"""Steps go on and nothing in particular holds them back."""

from perfwatch.text import short_time
from perfwatch.triage.cards.accelerated import UNITS_UNSEEN
from perfwatch.triage.cards.gpu import Regime, regimes, spins_on, unseen
from perfwatch.triage.cards.thresholds import FEW_SECONDS
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.ranks.lateness import waiting_share
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.own_work import rests, takes_a_lock
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.starving import SURE_SHARE, awaits_data
from perfwatch.triage.slowness import asleep_share
from perfwatch.triage.waits.gil import GIL_SHARE, gil_wait
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Finding, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("balanced", "healthy", "user_code", (Thread, Stack))

FEW_SAMPLES = 15
WINDOW_SECONDS = 15.0
IDLE_SHARE = 0.5  # of the time without a kernel: something holds the card back, though nobody can say what
NO_BOTTLENECK = 0.75
PACE_SECONDS, EVEN_STEPS, EVENLY = 120.0, 3, 1.1
MOSTLY = 0.5
SLEEPS, UNNAMED = 0.3, 0.6  # of the time; and how sure it is then that nothing holds it back
AT_ITS_PACE = 0.7  # a sleep that somebody left in looks the same: its line is told


def judge(case: Case) -> Outcome:
    """Fires when every rank moves and enough was seen of it."""
    if not case.moving:
        return None
    if (paced := _paced(case)) is not None:
        return paced
    slept = 0.0
    for rank in case.trainers:
        seen = case.profile(rank, WINDOW_SECONDS)
        if seen.samples < FEW_SAMPLES or not seen.seen(*TRAINING_TAGS):
            return None
        locked = seen.share_where(lambda stack: takes_a_lock(case.history, stack))
        if max(seen.share_where(awaits_data), locked) > SURE_SHARE:
            return None  # for whatever reason: nobody would call that healthy
        if (wait := gil_wait(case, rank)) is not None and wait.share >= GIL_SHARE:
            return None  # whoever owns it meanwhile
        slept = max(slept, _sleeps_unexplained(case, rank, seen))
        cards = regimes(case.history, rank.pid, WINDOW_SECONDS)
        if cards_of(case.history, rank.pid).certain and _not_known_to_work(case, cards):
            return None
    basis = case.progress[case.trainers[0].pid].basis
    sources = {card.source for rank in case.trainers for card in regimes(case.history, rank.pid, WINDOW_SECONDS)}
    return Finding(
        cause=CAUSE.name,
        state="healthy",
        summary=f"training goes on ({basis}) and nothing in particular holds it back"
        + (
            f", though its thread sleeps {slept:.0%} of the time for what nobody has a name for"
            if slept >= SLEEPS
            else ""
        ),
        confidence=min(UNNAMED if slept >= SLEEPS else NO_BOTTLENECK, UNITS_UNSEEN if "nvml" in sources else 1.0),
        owner=CAUSE.owner,
        evidence=(case.saw("progress", f"{len(case.trainers)} ranks", "moves", basis, "steps go on"),),
    )


def _sleeps_unexplained(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the time that a training thread without a card sleeps, and waits for neither data nor other ranks."""
    if cards_of(case.history, rank.pid).uuids or unseen(case.history, rank.pid):
        return 0.0
    explained = waiting_share(case, rank, seen) + seen.share_where(awaits_data)
    return (asleep_share(case, rank) or 0.0) - explained


def _paced(case: Case) -> Finding | None:
    """One rank whose steps come evenly, with a sleep of the program's own between them: a simulator in real time, say."""
    if len(case.ranks) != 1 or (case.job.world_size or 1) > 1:
        return None
    rank = case.ranks[0]
    steps, seen = case.steps(rank, PACE_SECONDS), case.profile(rank, WINDOW_SECONDS)
    if steps is None or len(steps.intervals) < EVEN_STEPS or seen.samples < FEW_SAMPLES:
        return None
    slept = seen.share_where(lambda stack: rests(case.history, stack))
    length = steps.median_seconds or 0.0
    if slept < MOSTLY or (steps.long_seconds or 0.0) > EVENLY * length:
        return None
    at = show(seen.top_line(lambda stack: rests(case.history, stack)))
    return Finding(
        cause=CAUSE.name,
        state="healthy",
        summary=f"training goes on at a pace of its own, a step each {short_time(length)}: it sleeps {slept:.0%} of the time at {at}",
        confidence=AT_ITS_PACE,
        owner=CAUSE.owner,
        evidence=(
            case.saw(
                "steps",
                f"pid {rank.pid}",
                "come evenly",
                f"p50 {short_time(length)}, p95 {short_time(steps.long_seconds or 0.0)}",
                "steps go on",
            ),
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "sleeps in the program's own code",
                f"{slept:.0%} of {seen.samples} samples",
                "0 %",
            ),
        ),
    )


def _not_known_to_work(case: Case, cards: tuple[Regime, ...]) -> bool:
    """Whether the cards were not looked at for long enough, have nothing to do most of the time, or a kernel that may not end.

    Unseen ones tell nothing.
    """
    if not cards:
        return False
    first = cards[0]
    return first.seconds < FEW_SECONDS or first.waiting > IDLE_SHARE or spins_on(case.history, first.uuid)


RULES = (Rule(CAUSE, judge),)
