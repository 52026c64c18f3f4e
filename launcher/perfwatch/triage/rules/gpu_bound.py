"""The GPU is the bottleneck, as it should be."""

from perfwatch.triage.cards.accelerated import UNITS_UNSEEN, Accelerated, accelerated, monitored, surroundings_known
from perfwatch.triage.cards.efficiency import efficiency, headline, in_words, mfu_in_words
from perfwatch.triage.cards.neighbours import neighbours
from perfwatch.triage.cards.residency import BUSY
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Evidence, Finding, Outcome
from perfwatch_probes.readings import GpuSample

CAUSE = Cause("gpu_bound", "healthy", "user_code", (GpuSample,))

ACTIVE = 0.5  # of the multiprocessors
WAITS_IN_COLLECTIVES = 0.2  # of the looks: a card that spins so often is not what the job waits for
TENSOR, MEMORY = 0.1, 0.5  # where one of them is used that much, the card does what it was bought for
NOT_ALONE = 0.78  # somebody else's process is on the card, and the driver does not measure what uses little of it
PLAIN, ONLY_BUSY, ROUGH = 0.92, 0.72, 0.75  # rough: clocks or neighbours unseen


def judge(case: Case) -> Outcome:
    """Fires when every rank keeps its card busy."""
    found = accelerated(case)
    if not found or len(found) < len(case.ranks) or not all(_bound(one) for one in found):
        return None
    figures = efficiency(case)
    evidence: list[Evidence] = [
        monitored(case, one, "busy nearly all the time, and full", "the bottleneck of a healthy run")
        for one in found[:4]
    ]
    evidence += [case.saw("hardware", name_of(case.history, card.uuid), *in_words(card)) for card in figures.cards[:4]]
    for one in found:
        for other in neighbours(case.history, one.card.uuid)[:2]:
            shares = f"{(other.memory_bytes or 0) / 2**30:.1f} GiB, {other.share or 0:.0%} of the time"
            evidence.append(case.saw("nvml", f"pid {other.pid}", "another process is on the card", shares, "none"))
    if figures.model is not None:
        evidence.append(
            case.saw(
                "model", "job", "does its own arithmetic", mfu_in_words(figures.model), "35 to 55 % in well tuned runs"
            )
        )
    least = min(found, key=lambda one: one.card.graphics or 0.0)
    reached = "; ".join(filter(None, (headline(figures, case), mfu_in_words(figures.model) if figures.model else "")))
    return Finding(
        cause=CAUSE.name,
        state="healthy",
        summary=f"the GPU is busy {least.card.graphics or 0:.0%} of the time, and training goes on"
        + (f": {reached}" if reached else ""),
        confidence=min(_sure(case, found), *(one.ceiling for one in found)),
        owner=CAUSE.owner,
        evidence=tuple(evidence),
        next=(
            "to go further: a table of the kernels of one step (ncu), fused ones (torch.compile), a lower precision",
        ),
        alternatives=(
            Alternative(
                cause="underfilled_gpu", refuted_by=f"{least.card.sm_active:.0%} of the multiprocessors are active"
            ),
        )
        if least.card.sm_active is not None
        else (),
    )


def _sure(case: Case, found: list[Accelerated]) -> float:
    if any(one.card.source != "gpm" for one in found):
        return UNITS_UNSEEN
    if any(not surroundings_known(case, one.card.uuid) for one in found):
        return ROUGH
    if any(neighbours(case.history, one.card.uuid) for one in found):
        return NOT_ALONE
    used = all((one.card.tensor or 0.0) >= TENSOR or (one.card.dram or 0.0) >= MEMORY for one in found)
    return PLAIN if used else ONLY_BUSY


def _bound(one: Accelerated) -> bool:
    card = one.card
    full = card.sm_active is None or card.sm_active >= ACTIVE
    waits = card.spinning > WAITS_IN_COLLECTIVES and not card.computes
    return (card.graphics or 0.0) >= BUSY and full and not waits


RULES = (Rule(CAUSE, judge),)
