"""Every rank is in the same collective, and it does not end.

What it means
    Nobody is missing and nobody is wrong: the network, the fabric or the collective library itself does not deliver. A cable,
    a switch, a firewall, a broken NIC or link.

How it is recognised
    Every rank of the job is seen, and all stand in the same call at the same line (on GPUs: a kernel is resident that moves
    nothing, and all cards look alike). NCCL's counts and the flight recorders, where they are there, are level and do not
    grow. No bytes travel over the ranks' connections (where these cannot be read: over any interface), RDMA ports or NVLink.

What it is mistaken for
    ``stalled_collective``: a rank is elsewhere, or has called less often. ``mismatched_collective``: the calls differ. A large
    transfer: bytes travel. Ranks that send to each other: RAS counts no sends. ``stuck_kernel``: one card looks different from the others.

What to do next
    ``dmesg`` and the port counters of the machines named; ``NCCL_DEBUG=INFO``; nccl-tests between these ranks.
"""

import msgspec

from perfwatch.probes.readings import Network, Process, Stack, Thread
from perfwatch.triage.absence import in_collective
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.collectives import never_called
from perfwatch.triage.flows import SILENT_BYTES_PER_SECOND
from perfwatch.triage.footprint import alike
from perfwatch.triage.frames import collective_name, show
from perfwatch.triage.gpu import POLLING_UNITS, polls, regimes
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, temporal
from perfwatch.triage.motion import WINDOW_SECONDS
from perfwatch.triage.point_to_point import exchanging
from perfwatch.triage.rule import Cause
from perfwatch.triage.traffic import carried, travelling
from perfwatch.triage.verdict import Abstention, Alternative, Link, Missing, Outcome
from perfwatch.triage.waitgraph import wait_graph

CAUSE = Cause("wedged_collective", "hung", "fabric", (Process, Thread, Stack, Network))

OUTAGE_SECONDS = 20.0  # seen to be sent again and again: a route or a bond that fails over has healed by then
UNSIZED = 0.78  # RAS counts calls: that all mean the same size, which NCCL does not check, only the recorders tell
UNCOUNTED = 0.85  # neither RAS nor a recorder has confirmed that all are at the same call


def judge(case: Case) -> Outcome:
    """Fires when all ranks stand in one and the same collective and nothing travels."""
    graph = wait_graph(case)
    recorded = graph is not None and graph.together and graph.seconds >= STRUCTURAL_SECONDS and not _computes(case)
    counted = graph is not None and graph.level and graph.seconds >= STRUCTURAL_SECONDS and _only_polls(case)
    together = recorded or counted
    chains = tuple(case.chains.values()) if together else case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks):
        return None
    if not together and not all(in_collective(case, chain) for chain in chains):
        return None
    if not recorded and (exchanging(case) or never_called(case)):
        return None  # in sends and receives, which are no call that all are in, and which RAS does not count
    if not case.job.covered:
        reason = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
        advice = "run perfwatch attach on the other nodes too: a rank there may be elsewhere"
        return Abstention(cause=CAUSE.name, missing=(Missing(witness="ranks", reason=reason, advice=advice),))
    if (graph is not None and graph.edges) or not alike(case) or not (recorded or _at_one_line(chains)):
        return None
    own = carried(case, WINDOW_SECONDS)
    moved = travelling(case, WINDOW_SECONDS) if own is None else own.bytes_per_second
    if moved is None:
        lacking = case.lacks("network") or Missing(witness="network", reason="the interfaces were not read twice")
        return Abstention(cause=CAUSE.name, missing=(lacking,))
    if moved > SILENT_BYTES_PER_SECOND:
        return None
    on_cards = together or all(chain.end.kind == "gpu" for chain in chains)
    silent = min(chain.end.silent_seconds or 0.0 for chain in chains)
    call = next(iter(graph.calls.values()), "") if graph is not None else ""
    stands = "the same collective" if on_cards else chains[0].awaited
    # NVLink delivers or does not; what goes over a network is sent again for a while, and a link may come back.
    patience = STRUCTURAL_SECONDS if on_cards and graph is not None else temporal(case)
    if own is not None and own.lost:
        patience = min(patience, OUTAGE_SECONDS)
    found = hung(
        case,
        CAUSE.name,
        chains[0],
        owner=CAUSE.owner,
        summary=f"all {len(chains)} ranks are in {call or stands} at "
        f"{show(chains[0].start.frame or chains[0].end.node.frame)}, and nothing travels between them",
        patience=patience,
        silent=silent if graph is None else max(silent, graph.seconds),
        evidence=(
            *(graph.evidence(case) if graph is not None else ()),
            case.saw(
                "network",
                "host" if own is None else "the ranks' connections",
                "nothing travels",
                f"{moved / 1024:.1f} KiB/s" if own is None else own.shown(),
                "gradients travel in each step",
            ),
        ),
        ceiling=1.0 if recorded else UNSIZED if on_cards else UNCOUNTED,
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="every rank is in the same call at the same line"),
            Alternative(
                cause="mismatched_collective",
                refuted_by="the recorders show the same calls"
                if recorded
                else "the calls are the same as far as can be seen; their sizes, and sends and receives, only the recorders tell",
            ),
        ),
        next=(
            "dmesg | grep -iE 'nvlink|mlx5|link|xid'; ss -tni",
            "NCCL_DEBUG=INFO and nccl-tests all_reduce_perf between these hosts",
        ),
    )
    return msgspec.structs.replace(
        found, culprits=(), wait_chain=tuple(_link(link, counted) for chain in chains for link in chain.links)
    )


def _link(link: Link, counted: bool) -> Link:
    """What a card that polls host memory does looks like work to whoever sees that card alone."""
    return msgspec.structs.replace(link, waits_for="its GPU, whose kernel only polls") if counted else link


def _computes(case: Case) -> bool:
    """Whether some card's arithmetic or memory is in use: then a call that is not over may only be waiting its turn."""
    return any(card.units > POLLING_UNITS for rank in case.ranks for card in regimes(case.history, rank.pid))


def _only_polls(case: Case) -> bool:
    """Whether each rank's card holds a kernel that does nothing but look whether something has come."""
    return all(polls(case.history, rank.pid) for rank in case.ranks)


def _at_one_line(chains: tuple[Chain, ...]) -> bool:
    """Whether all are in the same call at the same line, as far as their stacks tell."""
    stacks = [chain.start.stack for chain in chains]
    names = {collective_name(stack) for stack in stacks if stack is not None}
    lines = {show(chain.start.frame) for chain in chains}
    return None not in stacks and len(names) == 1 and len(lines) == 1
