"""Every rank is in a collective, but not in the same one."""

from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.moving.working import goes_on_within
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks import mpi
from perfwatch.triage.ranks.different_calls import by_counts
from perfwatch.triage.ranks.disagreeing import by_records, in_a_ring
from perfwatch.triage.ranks.exchanges import (
    POINT_TO_POINT,
    called,
    makes_group,
    may_go_on,
    may_join_beside,
    one_sided,
)
from perfwatch.triage.ranks.leaving import left_early
from perfwatch.triage.ranks.other_groups import in_other_groups
from perfwatch.triage.ranks.parted import Places, numbers, told_apart
from perfwatch.triage.ranks.polling_apart import polling_apart
from perfwatch.triage.ranks.traffic import travels
from perfwatch.triage.ranks.unequal_sizes import by_sizes
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import Process, Stack, Thread

CAUSE = Cause("mismatched_collective", "hung", "user_code", (Process, Thread, Stack))

SAME_NAME = 0.8  # the same collective from different lines: a mismatch of order or of size, seen less directly
PATIENT, RESTS_BESIDE = 5.0, 0.7  # times the patience where another thread rests that may send; or make the call itself


def judge(case: Case) -> Outcome:
    """Fires when all ranks stand in different collectives, or were recorded in different ones."""
    told = (
        by_records(case)
        or in_a_ring(case)
        or in_other_groups(case)
        or left_early(case)
        or by_counts(case)
        or by_sizes(case)
        or mpi.at_odds(case)
        or polling_apart(case, CAUSE)
    )
    if told is not None:
        return told
    chains = case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks) or not case.job.covered:
        return None
    if any(
        chain.end.node.stack is None or not (chain.end.kind == "collective" or makes_group(chain)) for chain in chains
    ):
        return None
    places: Places = {}
    for chain in chains:
        places.setdefault((called(chain), show(chain.end.node.frame)), []).append(chain)
    names = {name for name, _ in places}
    moves = travels(case)
    if moves:
        return None  # one call's data is still on its way; who has got all of it may be in the next one
    with_cards = any(cards_of(case.history, rank.pid).uuids for rank in case.ranks)  # NVLink has no sockets
    if (may_go_on(names) and (moves is None or with_cards)) or (len(places) == 1 and not one_sided(names)):
        return None
    if any(goes_on_within(case, chain.end.node) for chain in chains):
        return None
    exchanges = bool(names & POINT_TO_POINT)
    if beside := [chain for chain in chains if may_join_beside(case, chain.end.node)]:
        unless = f", unless another thread of {numbers(beside)} answers them"
        return told_apart(case, CAUSE, places, temporal(case) * (PATIENT if exchanges else 1.0), RESTS_BESIDE, unless)
    if exchanges:
        return told_apart(case, CAUSE, places, temporal(case), SAME_NAME)
    certain = moves is not None or any(map(makes_group, chains))  # who makes a group has no data on its way
    patience = STRUCTURAL_SECONDS if certain else temporal(case)
    return told_apart(case, CAUSE, places, patience, 1.0 if len(names) > 1 else SAME_NAME)


RULES = (Rule(CAUSE, judge),)
