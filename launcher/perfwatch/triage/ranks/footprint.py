"""Whether the ranks' cards look alike, by the share of their multiprocessors that is active: inside one collective they do."""

from collections.abc import Sequence

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.case import Case

SAME_FOOTPRINT = 0.02  # of the multiprocessors: ranks inside one collective are as alike (measured 0.182 and 0.182)


def alike(case: Case) -> bool:
    """Whether the ranks' cards look alike: one that does not is in another kernel, before or instead of the collective."""
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid)]
    levels = [card.sm_active for card in cards if card.sm_active is not None]
    return max(levels, default=0.0) - min(levels, default=0.0) <= SAME_FOOTPRINT


def stands_out(card: Regime, cards: Sequence[Regime]) -> bool:
    """Whether a card differs from the one in the middle of all of them."""
    levels = sorted(one.sm_active or 0.0 for one in cards)
    return abs((card.sm_active or 0.0) - levels[len(levels) // 2]) > SAME_FOOTPRINT
