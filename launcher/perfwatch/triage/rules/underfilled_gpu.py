"""The GPU is busy with kernels that fill only a small part of it."""

from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.residency import BUSY
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import GpuActivity

CAUSE = Cause("underfilled_gpu", "slow", "user_code", (GpuActivity,))

ACTIVE = 0.5  # of the multiprocessors; a decoder that fills the card keeps 0.8 of them active
WEIGHS = 0.8  # of what is idle: a fuller card is never quite full


def judge(case: Case) -> Outcome:
    """Fires on a card that is always busy and mostly empty."""
    for one in accelerated(case):
        card = one.card
        if card.sm_active is None or card.sm_active >= ACTIVE or (card.graphics or 0.0) < BUSY or _waits(case, one):
            continue
        name = name_of(case.history, card.uuid)
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=WEIGHS * (1.0 - card.sm_active),
            confidence=0.88,
            summary=f"{name} is busy {card.graphics or 0:.0%} of the time with kernels that fill {card.sm_active:.0%} of it",
            evidence=(
                monitored(case, one, "busy, and mostly empty", "SM above 60 %"),
                case.saw(card.source, name, "warps in flight", f"{card.occupancy or 0:.0%} of what it can hold"),
            ),
            alternatives=(
                Alternative(cause="stuck_kernel", refuted_by=f"steps go on ({case.progress[one.rank.pid].basis})"),
                Alternative(
                    cause="host_bound_python", refuted_by=f"the card waits only {card.waiting:.0%} of the time"
                ),
            ),
            next=("raise the batch size until SM activity is above 60 %, or run several models side by side",),
        )
    return None


def _waits(case: Case, one: Accelerated) -> bool:
    """Whether a kernel of a collective may be what fills so little of the card."""
    several = len(case.job.ranks) > 1 or (case.job.world_size or 1) > 1
    return several


RULES = (Rule(CAUSE, judge),)
