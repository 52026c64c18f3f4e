"""Ranks that end their process group while others still train: they made fewer calls, and both sides wait for each other."""

import msgspec

from perfwatch.triage.absence import in_collective, listed, rank_of, waits_as, way
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.frames import any_tag, show, tags
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, temporal
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = "mismatched_collective"
# Where no GPU can be asked, a wait for it is seen as a native call that does not return.
WAITS = ("collective", "gpu", "native")


def leaves(chain: Chain) -> bool:
    """Whether a rank is done and destroys its process group."""
    return chain.start.stack is not None and any_tag(tags(chain.start.stack), "group_destroy")


def others_train(case: Case, pid: int) -> bool:
    """Whether a rank leaves and another one does not."""
    return leaves(case.chains[pid]) and any(not leaves(chain) for chain in case.chains.values())


def left_early(case: Case) -> Outcome:
    """Some ranks have made their last call, the others wait in one more: all stand still, and nobody is anywhere else."""
    leaving = [chain for chain in case.still_chains if leaves(chain)]
    waiting = [chain for chain in case.still_chains if not leaves(chain)]
    if not leaving or not waiting or len(leaving) + len(waiting) < len(case.ranks) or not case.job.covered:
        return None
    if any(chain.end.kind not in WAITS for chain in waiting):
        return None
    silent = min(chain.end.silent_seconds or 0.0 for chain in (*leaving, *waiting))
    seen = all(in_collective(case, chain) for chain in waiting)
    left = ", ".join(f"rank {rank_of(chain)} at {show(chain.start.frame)}" for chain in leaving[:3])
    stands = show(waiting[0].start.frame)
    found = hung(
        case,
        CAUSE,
        leaving[0],
        owner="user_code",
        summary=f"the ranks have made unequal numbers of calls: {left} destroys its process group, while "
        f"{listed([rank_of(chain) for chain in waiting])} in one more, at {stands}",
        patience=STRUCTURAL_SECONDS if seen else temporal(case),
        silent=silent,
        evidence=tuple(
            case.saw(
                "collective",
                f"rank {rank_of(chain)}",
                "destroys its process group" if leaves(chain) else f"waits {waits_as(case, chain)}",
                f"{show(chain.start.frame)} for {chain.end.silent_seconds or 0:.1f} s",
                "all ranks in the same call",
            )
            for chain in (*leaving[:2], *waiting[:2])
        ),
        alternatives=(Alternative(cause="hung_at_exit", refuted_by="training is not over in every rank"),),
        next=("compare how many batches each rank gets: who has fewer, or leaves its loop earlier?",),
    )
    return msgspec.structs.replace(
        found,
        culprits=tuple(one for chain in (*leaving, *waiting) for one in chain.culprits()),
        wait_chain=tuple(
            link for chain in (*leaving, *waiting) for link in (chain.links if leaves(chain) else way(case, chain))
        ),
    )
