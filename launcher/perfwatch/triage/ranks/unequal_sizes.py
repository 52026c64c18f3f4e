"""All ranks in one call over sockets, all that was sent has arrived, and none goes on: they mean different things by it.

NCCL does not compare sizes. Over NVLink ranks that disagree may go on with garbage; over a network the one that expects more
waits for bytes that nobody will ever send (measured: four ranks over sockets, a gradient of one more column in rank 1). gloo
fails there; of its calls that wait for each other those of different groups are left (three pairs in a ring, through one helper).
"""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.together import Together, together
from perfwatch.verdict import Alternative, Outcome

CAUSE = "mismatched_collective"
DELIVERED = 0.72  # by exclusion: the sizes themselves only the recorders tell


def by_sizes(case: Case) -> Outcome:
    """Fires where the network owes nobody anything, and no recorder has shown the sizes to be the same."""
    found = together(case)
    if not isinstance(found, Together) or not found.delivered:
        return None
    result = hung(
        case,
        CAUSE,
        found.chains[0],
        owner="user_code",
        summary=f"all {len(found.chains)} ranks are in {found.place}, and all that they sent has arrived: "
        + ("their tensors differ in size or type" if found.on_cards else "their calls are not of the same group"),
        # gloo's own threads may add up large tensors between two messages, and nothing travels meanwhile
        patience=STRUCTURAL_SECONDS if found.on_cards else temporal(case),
        silent=found.silent_seconds,
        ceiling=DELIVERED,
        evidence=found.evidence(case),
        alternatives=(
            Alternative(
                cause="wedged_collective",
                refuted_by="nothing that went over the connections is unconfirmed; what goes over NVLink is not seen",
            ),
            Alternative(cause="stalled_collective", refuted_by="every rank is in the same call at the same line"),
        ),
        next=(
            "compare the tensor's shape and dtype in each rank before this call",
            "perfwatch run -- ...   # arms the flight recorder, which tells the sizes",
        )
        if found.on_cards
        else ("compare the group that each rank hands to this call, and the order in which they come to it",),
    )
    return msgspec.structs.replace(
        result, culprits=(), wait_chain=tuple(link for chain in found.chains for link in chain.links)
    )
