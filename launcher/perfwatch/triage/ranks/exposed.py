"""How it is told that the ranks wait for each other's data: whose call it is, and what would hide it behind computing."""

from collections.abc import Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.collectives import growing
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import WINDOW_SECONDS, slow
from perfwatch.triage.words.frames import any_tag, inner_tags, show, tags
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding
from perfwatch_probes.readings import Stack

SHOWN = 4  # ranks
DIRECT = (
    "NCCL_DEBUG=INFO says why NCCL goes through host memory and not over NVLink: NCCL_P2P_DISABLE=1, or NCCL_P2P_LEVEL?"
)
LESS = "accumulate gradients or enlarge the batch; a bf16 communication hook halves the bytes"


def exposed(
    case: Case,
    cause: Cause,
    rank: Member,
    lost: float,
    how: str,
    evidence: tuple[Evidence, ...],
    confidence: float,
    *,
    small: bool = False,
    detour: bool = False,
) -> Finding:
    """A slow finding about all ranks.

    small: it is the number of calls that costs, not what they carry. detour: NVLink is there, and not used.
    """
    calls = case.profile(rank, WINDOW_SECONDS).top_line(_is_called)
    counted = " and RAS sees their counts grow" if growing(case) else ""
    place = show(calls) if calls is not None else ""
    sharded = "torch.distributed.fsdp, or DistributedDataParallel(gradient_as_bucket_view=True, bucket_cap_mb=...)"
    overlaps = f"DistributedDataParallel sends while the backward pass computes{f': {place} does not' if place else ''}"
    if detour:
        first, second = DIRECT, LESS
    elif small:
        first = f"one call for many tensors: flatten them into one{f' before {place}' if place else ''}"
        second = overlaps
    else:
        first, second = (overlaps, LESS) if place else (LESS, sharded)
    return slow(
        case,
        cause,
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
        next=(first, second),
    )


def waiting(case: Case, ranks: Sequence[Member], waits: Sequence[float]) -> tuple[Evidence, ...]:
    """What shows for how much of the time the ranks wait."""
    return tuple(
        case.saw("stack", f"rank {rank.rank}", "waits in collectives", f"{share:.0%} of the time", "below a third")
        for rank, share in list(zip(ranks, waits, strict=True))[:SHOWN]
    )


def _is_called(stack: Stack) -> bool:
    """Whether the program calls a collective itself, and not a wrapper (DDP, FSDP) for it."""
    return "collective" in inner_tags(stack) and not any_tag(tags(stack), "backward", "forward", "optimizer")
