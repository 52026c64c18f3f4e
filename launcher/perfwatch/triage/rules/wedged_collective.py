"""Every rank is in the same collective, and it does not end."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.collectives import recorder_owes
from perfwatch.triage.ranks.together import together
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Abstention, Alternative, Link, Missing, Outcome
from perfwatch_probes.readings import Communicator, Network, Process, Stack, Thread

CAUSE = Cause("wedged_collective", "hung", "fabric", (Process, Thread, Stack, Network))

OUTAGE_SECONDS = 20.0  # seen to be sent again and again: a route or a bond that fails over has healed by then
ANSWER_SECONDS = 5.0  # more, while a recorder that can be asked has not answered: it writes within two seconds
UNSIZED = 0.78  # RAS counts calls: that all mean the same size, which NCCL does not check, only the recorders tell
UNORDERED = 0.65  # what is queued on a card for two communicators waits in the order of its rank's calls, which only the recorders tell
UNCOUNTED = 0.85  # neither RAS nor a recorder has confirmed that all are at the same call


def judge(case: Case) -> Outcome:
    """Fires when all ranks stand in one and the same collective and nothing travels."""
    seen = together(case)
    if isinstance(seen, Missing):
        return Abstention(cause=CAUSE.name, missing=(seen,))
    if seen is None or seen.delivered:
        return None  # what the network was given it has delivered
    # NVLink delivers or does not; what goes over a network is sent again for a while, and a link may come back.
    patience = STRUCTURAL_SECONDS if seen.on_cards and seen.graph is not None else temporal(case)
    if seen.flow is not None and seen.flow.lost:
        patience = min(patience, OUTAGE_SECONDS)
    if seen.on_cards and not seen.recorded and recorder_owes(case):
        patience += ANSWER_SECONDS
    groups = 0 if seen.recorded else _groups(case, len(seen.chains))
    found = hung(
        case,
        CAUSE.name,
        seen.chains[0],
        owner=CAUSE.owner,
        summary=f"all {len(seen.chains)} ranks are in {seen.place}, and nothing travels between them"
        + (
            f"; calls of their {groups} communicators, made in another order by each, hang so too" if groups > 1 else ""
        ),
        patience=patience,
        silent=seen.silent_seconds,
        evidence=seen.evidence(case),
        ceiling=1.0 if seen.recorded else UNORDERED if groups > 1 else UNSIZED if seen.on_cards else UNCOUNTED,
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="every rank is in the same call at the same line"),
            Alternative(
                cause="mismatched_collective",
                refuted_by="the recorders show the same calls"
                if seen.recorded
                else "the calls are the same as far as can be seen; their sizes, and sends and receives, only the recorders tell",
            ),
        ),
        next=(
            "dmesg | grep -iE 'nvlink|mlx5|link|xid'; ss -tni",
            "start it with perfwatch run: the flight recorder then tells in which order each rank calls"
            if groups > 1
            else "NCCL_DEBUG=INFO and nccl-tests all_reduce_perf between these hosts",
        ),
    )
    return msgspec.structs.replace(
        found, culprits=(), wait_chain=tuple(_link(link, seen.counted) for chain in seen.chains for link in chain.links)
    )


def _groups(case: Case, ranks: int) -> int:
    """How many communicators of all the ranks were used, by RAS."""
    answers = (case.history.latest(Communicator, *key) for key in case.history.entities(Communicator))
    return sum(seen is not None and seen.reading.size == ranks and _used(seen.reading) for seen in answers)


def _used(communicator: Communicator) -> bool:
    launched = [sum(member.launched.values()) for member in communicator.members]
    return min(launched, default=0) > 0


def _link(link: Link, counted: bool) -> Link:
    """What a card that polls host memory does looks like work to whoever sees that card alone."""
    return msgspec.structs.replace(link, waits_for="its GPU, whose kernel only polls") if counted else link


RULES = (Rule(CAUSE, judge),)
