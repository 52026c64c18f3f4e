"""All ranks in one and the same collective, and nothing travels between them: what holds for a wedge, and for unequal sizes."""

from dataclasses import dataclass

from perfwatch.triage.cards.gpu import POLLING_UNITS, polls, regimes
from perfwatch.triage.case import Case
from perfwatch.triage.moving.flows import SILENT_BYTES_PER_SECOND, Flow
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.ranks.absence import in_collective
from perfwatch.triage.ranks.collectives import never_called
from perfwatch.triage.ranks.exchanges import POINT_TO_POINT, called
from perfwatch.triage.ranks.footprint import alike
from perfwatch.triage.ranks.point_to_point import exchanging
from perfwatch.triage.ranks.traffic import carried, travelling
from perfwatch.triage.ranks.waitgraph import WaitGraph, wait_graph
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.handles import EXCHANGE
from perfwatch.triage.words.frames import collective_name, show
from perfwatch.verdict import Evidence, Missing
from perfwatch_probes.readings import Network


@dataclass(frozen=True)
class Together:
    """Ranks that stand in one call. ``recorded``: the flight recorders say so; ``counted``: RAS does; else only the stacks."""

    chains: tuple[Chain, ...]
    graph: WaitGraph | None
    recorded: bool
    counted: bool
    flow: Flow | None  # over the ranks' own connections; None where these could not be read
    bytes_per_second: float
    rdma: bool  # whether there are RDMA ports, over which the collective may run instead

    @property
    def on_cards(self) -> bool:
        """Whether the collective runs on GPUs."""
        return self.recorded or self.counted or all(chain.end.kind == "gpu" for chain in self.chains)

    @property
    def delivered(self) -> bool:
        """Whether the collective runs over connections on which nothing is under way, so that no network holds it up.

        NCCL's data may go elsewhere, so they must have carried some; gloo has nothing else. Where the recorders show one call in
        every rank, its size is the same.
        """
        seen = self.flow is not None and (self.flow.delivered if self.on_cards else self.flow.owes_nothing)
        return seen and not self.recorded and not self.rdma

    @property
    def silent_seconds(self) -> float:
        """For how long all of them stand."""
        silent = min(chain.end.silent_seconds or 0.0 for chain in self.chains)
        return silent if self.graph is None else max(silent, self.graph.seconds)

    @property
    def place(self) -> str:
        """The call, as the recorders or the stacks name it, and the line."""
        named = next(iter(self.graph.calls.values()), "") if self.graph is not None else ""
        first = self.chains[0]
        call = named or ("the same collective" if self.on_cards else first.awaited)
        return f"{call} at {show(first.start.frame or first.end.node.frame)}"

    def evidence(self, case: Case) -> tuple[Evidence, ...]:
        """What the counts or the recorders show, and what the network does."""
        nothing = case.saw(
            "network",
            "host" if self.flow is None else "the ranks' connections",
            "nothing travels",
            f"{self.bytes_per_second / 1024:.1f} KiB/s" if self.flow is None else self.flow.shown(),
            "gradients travel in each step",
        )
        return (*(self.graph.evidence(case) if self.graph is not None else ()), nothing)


def together(case: Case) -> Together | Missing | None:
    """All ranks in one call that does not end; ``Missing`` where one more witness would have to be seen."""
    return case.history.once(("together",), lambda: _together(case))


def _together(case: Case) -> Together | Missing | None:
    graph = wait_graph(case)
    recorded = graph is not None and graph.together and graph.seconds >= STRUCTURAL_SECONDS and not _computes(case)
    counted = graph is not None and graph.level and graph.seconds >= STRUCTURAL_SECONDS and _only_polls(case)
    known = recorded or counted
    chains = tuple(case.chains.values()) if known else case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks):
        return None
    if not known and not all(in_collective(case, chain) for chain in chains):
        return None
    if (
        any(chain.end.detail == EXCHANGE or called(chain) in POINT_TO_POINT for chain in chains)
        or exchanging(case)
        or (not recorded and never_called(case))
    ):
        return None  # in sends and receives, which are no call that all are in, and which RAS does not count
    if not case.job.covered:
        reason = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
        advice = "run perfwatch attach on the other nodes too: a rank there may be elsewhere"
        return Missing(witness="ranks", reason=reason, advice=advice)
    if (graph is not None and graph.edges) or not alike(case) or not (recorded or _at_one_line(chains)):
        return None
    own = carried(case, WINDOW_SECONDS)
    moved = travelling(case, WINDOW_SECONDS) if own is None else own.bytes_per_second
    if moved is None:
        return case.lacks("network") or Missing(witness="network", reason="the interfaces were not read twice")
    if moved > SILENT_BYTES_PER_SECOND:
        return None
    ports = (case.history.latest(Network, *key) for key in case.history.entities(Network))
    rdma = any(port is not None and port.reading.kind == "rdma" for port in ports)
    return Together(chains, graph, recorded, counted, own, moved, rdma)


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
