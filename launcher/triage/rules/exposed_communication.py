"""The ranks spend their time sending gradients to each other, and nothing is computed meanwhile.

What it means
    The job is bound by communication: too much data for each step's arithmetic, too slow a link, or a reduction that does not
    overlap with the backward pass.

How it is recognised
    Steps are made and every rank waits about as long in collectives, for a large part of its time. On cards: they are taken
    all the time and NVLink (or the network) is busy, while tensor and memory units are not.

What it is mistaken for
    ``straggling_rank``: one rank hardly waits, the others wait for it. ``memory_bound_gpu``: the card's own memory is at its
    ceiling. A healthy data-parallel run: its cards compute while the gradients travel. ``oversubscribed_threads``: the ranks'
    own threads leave each other no CPU, and those of the communication neither.

What to do next
    Accumulate gradients, larger batches, ``gradient_as_bucket_view``, bf16 gradients (a communication hook), sharding (FSDP).
"""

from perfwatch.probes.readings import Process, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.collectives import growing
from perfwatch.triage.cpu import crowds_itself
from perfwatch.triage.frames import any_tag, inner_tags, show, tags
from perfwatch.triage.gpu import Regime, cards_of, name_of, regimes
from perfwatch.triage.job import Member
from perfwatch.triage.lateness import waiting_share
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, certainty, slow
from perfwatch.triage.traffic import MEBIBYTE, computes, only_sends, travelling
from perfwatch.triage.verdict import Alternative, Culprit, Evidence, Outcome

CAUSE = Cause("exposed_communication", "slow", "fabric", (Process, Stack))

WAITING_SHARE = 0.45  # of every rank's time; ranks in step with little to send wait 0.33 to 0.39 of it
MOST_OF_IT = 0.6
HALF_SURE = 0.79  # below it: of a model so small, that half of its step goes to the others is no fault of the fabric
MOST_APART = 2.0  # times: beyond that one rank is late, not all
BUSY_LINK_BYTES_PER_SECOND = 20 * MEBIBYTE  # that something travels at all: gloo over a loopback carries 500 MiB/s
CROWDED = 0.5  # of the waiting, where the job's own threads crowd the CPUs: gloo's wait for one too
SURE = 0.9


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
    if len(cards) < len(ranks) or not all(map(only_sends, cards)):
        return None
    first, rank = cards[0], ranks[0]
    share = (first.graphics or 0.0) - (first.tensor or 0.0)
    evidence = tuple(
        case.saw("gpm", name_of(case.history, card.uuid), "sends and receives, and hardly computes", card.shown(),
                 "tensor cores or memory busy")
        for card in cards[:4]
    )  # fmt: skip
    sent = (first.nvlink_mib_per_second or 0.0) / 1024
    how = f"{sent:.0f} GiB/s over NVLink, the tensor cores {first.tensor or 0:.0%}"
    return _found(case, rank, 0.9 * share, f"the cards are taken by collectives: {how}", evidence, SURE)


def _own(case: Case, rank: Member) -> list[Regime]:
    return list(regimes(case.history, rank.pid, WINDOW_SECONDS))[:1] if cards_of(case.history, rank.pid).certain else []


def _by_stacks(case: Case, ranks: tuple[Member, ...]) -> Outcome:
    profiles = [(rank, case.profile(rank, WINDOW_SECONDS)) for rank in ranks]
    if not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in profiles):
        return None
    waits = [waiting_share(case, rank, seen) for rank, seen in profiles]
    moved = travelling(case, WINDOW_SECONDS)
    if min(waits) < WAITING_SHARE or max(waits) > MOST_APART * min(waits):
        return None
    if moved is None or moved < BUSY_LINK_BYTES_PER_SECOND:
        return None
    evidence = (
        *(
            case.saw("stack", f"rank {rank.rank}", "waits in collectives", f"{share:.0%} of the time", "below a third")
            for (rank, _), share in list(zip(profiles, waits, strict=True))[:4]
        ),
        case.saw(
            "network", "host", "gradients travel", f"{moved / MEBIBYTE:,.0f} MiB/s", "little beside the computing"
        ),
    )
    how = f"every rank waits {min(waits):.0%} of the time or more for {moved / MEBIBYTE:,.0f} MiB/s of gradients"
    sure = certainty(min(waits)) if min(waits) >= MOST_OF_IT else min(HALF_SURE, certainty(min(waits)))
    lost = CROWDED * min(waits) if crowds_itself(case, ranks[0].pid) else min(waits)
    return _found(case, ranks[0], lost, how, evidence, sure)


def _is_called(stack: Stack) -> bool:
    """Whether the program calls a collective itself, and not a wrapper (DDP, FSDP) for it."""
    return "collective" in inner_tags(stack) and not any_tag(tags(stack), "backward", "forward", "optimizer")


def _found(
    case: Case, rank: Member, lost: float, how: str, evidence: tuple[Evidence, ...], confidence: float
) -> Outcome:
    calls = case.profile(rank, WINDOW_SECONDS).top_line(_is_called)
    counted = " and RAS sees their counts grow" if growing(case) else ""
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        summary=f"communication is not hidden behind computing: {how}",
        evidence=evidence,
        culprits=() if calls is None else (Culprit(pid=rank.pid, frame=show(calls)),),
        confidence=confidence,
        alternatives=(
            Alternative(cause="straggling_rank", refuted_by=f"all ranks wait about equally long{counted}"),
            Alternative(cause="memory_bound_gpu", refuted_by="what is moved goes to the other ranks"),
        ),
        next=(
            *(
                ()
                if calls is None
                else (f"DistributedDataParallel sends while the backward pass computes: {show(calls)} does not",)
            ),
            "accumulate gradients or enlarge the batch; a bf16 communication hook halves the bytes",
            "torch.distributed.fsdp, or DistributedDataParallel(gradient_as_bucket_view=True, bucket_cap_mb=...)",
        ),
    )
