"""Which rank the others wait for, as their cards tell: a collective that waits holds a card, and hardly uses it."""

from dataclasses import dataclass

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.verdict import Evidence

# Measured on H200 with one rank late in each step: the cards of the others were taken 100 % of the time, its own 1 %.
TAKEN, FREE = 0.9, 0.6
# Measured on H100 with one rank whose batches are twenty times as long: its card's memory at 0.33 of its maximum, 61 % of its
# multiprocessors active; the other's at 0.03 and 20 %, with a kernel on it 85 % of the time.
WORKS, TIMES, HELD, WAITING_SM = 0.15, 3.0, 0.75, 0.4
ALIKE = 0.1  # of the time, or of the multiprocessors
BY_WORK = 0.9  # how much each has to do may be meant so: stages of a pipeline, or two models


@dataclass(frozen=True)
class Late:
    """A rank that is last, how much of the time that costs, and what shows it."""

    rank: Member
    seen: Profile
    lost: float
    how: str
    evidence: tuple[Evidence, ...]
    sure: float = 1.0  # at most


def late_by_cards(case: Case, ranks: list[tuple[Member, Profile]]) -> Late | None:
    """One whose card is free while those of the others are taken, or whose card alone has work."""
    cards = {rank.pid: card for rank, _ in ranks if (card := _card_of(case, rank)) is not None}
    if len(cards) < len(ranks):
        return None
    return _free(case, ranks, cards) or _working(case, ranks, cards)


def alike(case: Case, ranks: list[tuple[Member, Profile]]) -> bool:
    """Whether the cards of all ranks are taken and do the same: one whose host is late is free, or has more to do than the others.

    Cards that have little to do tell nothing: the ranks may wait for each other on their hosts.
    """
    cards = [card for rank, _ in ranks if (card := _card_of(case, rank)) is not None and card.source == "gpm"]
    if len(cards) < len(ranks):
        return False
    shares = ([card.graphics or 0.0 for card in cards], [card.sm_active or 0.0 for card in cards])
    return min(shares[0]) >= TAKEN and max(max(each) - min(each) for each in shares) <= ALIKE


def _free(case: Case, ranks: list[tuple[Member, Profile]], cards: dict[int, Regime]) -> Late | None:
    taken = {pid: card.graphics or 0.0 for pid, card in cards.items()}
    late, seen = min(ranks, key=lambda one: taken[one[0].pid])
    own, least = taken[late.pid], min(share for pid, share in taken.items() if pid != late.pid)
    if least < TAKEN or own > FREE:
        return None
    how = f"the cards of the others are taken {least:.0%} of the time, by collectives that wait, its own {own:.0%}"
    shown = {pid: ("a kernel is on its card", f"{share:.0%} of the time") for pid, share in taken.items()}
    return Late(late, seen, least - own, how, _evidence(case, ranks, shown))


def _working(case: Case, ranks: list[tuple[Member, Profile]], cards: dict[int, Regime]) -> Late | None:
    late, seen = max(ranks, key=lambda one: cards[one[0].pid].units)
    own, others = cards[late.pid], [card for pid, card in cards.items() if pid != late.pid]
    most, least = max(card.units for card in others), min(card.graphics or 0.0 for card in others)
    if own.units < max(WORKS, TIMES * most) or least < HELD:
        return None
    if any(card.sm_active is None or card.sm_active > WAITING_SM for card in others):
        return None
    how = f"its card works ({own.shown()}), those of the others are taken {least:.0%} of the time by collectives that wait"
    shown = {pid: ("its card", card.shown()) for pid, card in cards.items()}
    return Late(late, seen, least * (1.0 - most / own.units), how, _evidence(case, ranks, shown), BY_WORK)


def _card_of(case: Case, rank: Member) -> Regime | None:
    if not cards_of(case.history, rank.pid).certain:
        return None
    return next((one for one in regimes(case.history, rank.pid, WINDOW_SECONDS) if one.graphics is not None), None)


def _evidence(
    case: Case, ranks: list[tuple[Member, Profile]], shown: dict[int, tuple[str, str]]
) -> tuple[Evidence, ...]:
    return tuple(
        case.saw("gpm", f"rank {rank.rank}", *shown[rank.pid], "about as much as the others") for rank, _ in ranks[:4]
    )
