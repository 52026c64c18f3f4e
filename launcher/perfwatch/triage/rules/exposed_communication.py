"""The ranks spend their time sending gradients to each other, and nothing is computed meanwhile."""

from functools import partial

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.ranks.exposed import exposed, waiting
from perfwatch.triage.ranks.lateness import all_wait_at_once, waiting_share
from perfwatch.triage.ranks.traffic import (
    MEBIBYTE,
    computes,
    only_sends,
    through_host,
    travelling,
    unused_links,
    way,
)
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.cpu import crowds_itself
from perfwatch.triage.shares.own_work import takes_a_lock
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import FEW_SAMPLES, LOST_SHARE, WINDOW_SECONDS, certainty
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import Process, Stack

CAUSE = Cause("exposed_communication", "slow", "fabric", (Process, Stack))

WAITING_SHARE = 0.45  # of every rank's time; ranks in step with little to send wait 0.33 to 0.39 of it
MOST_OF_IT = 0.6
HALF_SURE = 0.79  # below it: of a model so small, that half of its step goes to the others is no fault of the fabric
MOST_APART = 2.0  # times: beyond that one rank is late, not all
BUSY_LINK_BYTES_PER_SECOND = 20 * MEBIBYTE  # that something travels at all: gloo over a loopback carries 500 MiB/s
CROWDED = 0.5  # of the waiting counts beside another cause where it is not most of the time, or where the job's threads crowd the CPUs
HELD_UP = 0.25
SURE = 0.9
# Wake-ups a second of the training thread, each for a part of a collective (measured: 270, of 12 KiB).
SMALL_CALLS = 100.0


def judge(case: Case) -> Outcome:
    """Fires when all ranks wait for data of each other, and about equally long."""
    ranks = case.ranks
    if len(ranks) < 2 or any(one.kind == "still" for one in case.progress.values()):
        return None
    if any(computes(card) for rank in ranks for card in _own(case, rank)):
        return None  # whatever the host waits in meanwhile costs nothing
    return _by_cards(case, ranks) or _by_stacks(case, ranks)


def _by_cards(case: Case, ranks: tuple[Member, ...]) -> Outcome:
    cards = [card for rank in ranks for card in _own(case, rank)]
    if len(cards) < len(ranks) or not all(only_sends(case.history, card) for card in cards):
        return None
    first = cards[0]
    share = (first.graphics or 0.0) - (first.tensor or 0.0)
    evidence = tuple(
        case.saw("gpm", name_of(case.history, card.uuid), "sends and receives, and hardly computes",
                 f"{card.shown()}; {way(case.history, card)}", "tensor cores or memory busy")
        for card in cards[:4]
    )  # fmt: skip
    sure = SURE
    if through_host(case.history, first):  # what else may go that way the hosts tell, if they wait meanwhile
        waits = [waiting_share(case, rank, case.profile(rank, WINDOW_SECONDS)) for rank in ranks]
        sure = SURE if min(waits) >= WAITING_SHARE else HALF_SURE
        evidence += waiting(case, ranks, waits)
    how = f"the cards are taken by collectives: {way(case.history, first)}, the tensor cores {first.tensor or 0:.0%}"
    detour = unused_links(case.history, first) > 0
    return exposed(case, CAUSE, ranks[0], 0.9 * share, how, evidence, sure, detour=detour)


def _own(case: Case, rank: Member) -> list[Regime]:
    return list(regimes(case.history, rank.pid, WINDOW_SECONDS))[:1] if cards_of(case.history, rank.pid).certain else []


def _by_stacks(case: Case, ranks: tuple[Member, ...]) -> Outcome:
    profiles = [(rank, case.profile(rank, WINDOW_SECONDS)) for rank in ranks]
    if not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in profiles):
        return None
    waits = [waiting_share(case, rank, seen) for rank, seen in profiles]
    moved = travelling(case, WINDOW_SECONDS)
    if moved is None or min(waits) < WAITING_SHARE or max(waits) > MOST_APART * min(waits):
        return None
    if moved < BUSY_LINK_BYTES_PER_SECOND:
        return _by_calls(case, profiles, waits, moved)
    travels = f"{moved / MEBIBYTE:,.0f} MiB/s"
    network = case.saw("network", "host", "gradients travel", travels, "little beside the computing")
    evidence = (*waiting(case, ranks, waits), network)
    by_turns = all_wait_at_once(waits) <= 0.0  # now this one may compute alone, now that one
    how = f"every rank waits {min(waits):.0%} of the time or more for {travels} of gradients"
    how += ", or by turns for each other" if by_turns else ""
    known = min(waits) >= MOST_OF_IT and not by_turns
    sure = certainty(min(waits)) if known else min(HALF_SURE, certainty(min(waits)))
    counts = CROWDED if min(waits) < MOST_OF_IT or crowds_itself(case, ranks[0].pid) else 1.0
    if any(seen.share_where(partial(takes_a_lock, case.history)) >= LOST_SHARE for _, seen in profiles):
        counts = HELD_UP  # one is kept by a lock of its own, and the others wait for it
    lost = counts * min(waits)
    return exposed(case, CAUSE, ranks[0], lost, how, evidence, sure)


def _by_calls(case: Case, profiles: list[tuple[Member, Profile]], waits: list[float], moved: float) -> Outcome:
    """Little travels, and the waits are short and many: what is lost is the latency of each call."""
    nobody_computes = all_wait_at_once(waits)
    looks = [motion(case.history, rank.pid, case.progress[rank.pid].thread, WINDOW_SECONDS) for rank, _ in profiles]
    wakes = [one.switches_per_second or 0.0 for one in looks]
    if nobody_computes < MOST_OF_IT or min(wakes) < SMALL_CALLS or any(_own(case, rank) for rank, _ in profiles):
        return None
    evidence = tuple(
        case.saw("thread", f"rank {rank.rank}", "waits in collectives, shortly and often",
                 f"{share:.0%} of the time, {often:,.0f} wake-ups/s", "a few long ones in each step")
        for (rank, _), share, often in list(zip(profiles, waits, wakes, strict=True))[:4]
    )  # fmt: skip
    how = (
        f"every rank waits {min(waits):.0%} of the time or more though only {moved / MEBIBYTE:,.0f} MiB/s travel: "
        "many small collectives, or a network of long latency"
    )
    sure = min(SURE, certainty(nobody_computes))
    return exposed(case, CAUSE, profiles[0][0], nobody_computes, how, evidence, sure, small=True)


RULES = (Rule(CAUSE, judge),)
