"""All ranks in one NCCL call over sockets, all that was sent has arrived, and none goes on: they mean different sizes by it.

NCCL does not compare sizes. Over NVLink ranks that disagree may go on with garbage; over a network the one that expects more
waits for bytes that nobody will ever send (measured: four ranks over sockets, a gradient of one more column in rank 1).
"""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung
from perfwatch.triage.ranks.together import Together, together
from perfwatch.triage.verdict import Alternative, Outcome

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
        "their tensors differ in size or type",
        patience=STRUCTURAL_SECONDS,
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
        ),
    )
    return msgspec.structs.replace(
        result, culprits=(), wait_chain=tuple(link for chain in found.chains for link in chain.links)
    )
