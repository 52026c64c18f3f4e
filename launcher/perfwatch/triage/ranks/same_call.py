"""All ranks in one and the same call, and what travels between them meanwhile: over their connections, RDMA ports and NVLink."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfwatch.triage.cards.gpu import POLLING_UNITS, Regime, polls, regimes
from perfwatch.triage.case import Case
from perfwatch.triage.moving.flows import SHORTEST_SECONDS, SILENT_BYTES_PER_SECOND, Flow, flow, newest_flow
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.ranks.calls import POINT_TO_POINT, call_of, in_collective
from perfwatch.triage.ranks.groups import WaitGraph, exchanging, never_called, once_per_case, wait_graph
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.libraries import EXCHANGE
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Evidence, Missing
from perfwatch_probes import readings as r

SAME_FOOTPRINT = 0.02  # of the multiprocessors: ranks inside one collective are as alike (measured 0.182 and 0.182)
MEBIBYTE = 2**20


@dataclass(frozen=True)
class SameCall:
    """Ranks that are in one call. ``recorded``: the flight recorders say so; ``counted``: RAS does; else only the stacks."""

    chains: tuple[Chain, ...]
    graph: WaitGraph | None
    recorded: bool
    counted: bool
    flow: Flow | None  # over the ranks' own connections; None where these could not be read
    bytes_per_second: float
    rdma: bool  # there are RDMA ports, over which the collective may run instead

    @property
    def on_cards(self) -> bool:
        """True if the collective runs on GPUs."""
        return self.recorded or self.counted or all(chain.end.kind == "gpu" for chain in self.chains)

    @property
    def delivered(self) -> bool:
        """True if the collective runs over connections on which nothing is under way, so that no network holds it up.

        NCCL's data may go elsewhere, so they must have carried some; gloo has nothing else. Where the recorders show one call in
        every rank, its size is the same.
        """
        return has_arrived(self.flow, self.on_cards) and not self.recorded and not self.rdma

    @property
    def silent_seconds(self) -> float:
        """For how long no rank has gone on."""
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


@once_per_case
def same_call(case: Case) -> SameCall | Missing | None:
    """All ranks in one call that does not end; ``Missing`` where one more source would have to be read."""
    graph = wait_graph(case)
    stands = graph is not None and graph.seconds >= STRUCTURAL_SECONDS
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid)]
    computes = any(card.units > POLLING_UNITS for card in cards)  # a call that is not over may only wait for its turn
    recorded = graph is not None and graph.together and stands and not computes
    counted = graph is not None and graph.level and stands and all(polls(case.history, one.pid) for one in case.ranks)
    known = recorded or counted
    chains = tuple(case.chains.values()) if known else case.still_chains
    if len(chains) < 2 or len(chains) < len(case.ranks):
        return None
    if not known and not all(in_collective(case, chain) for chain in chains):
        return None
    sends = any(chain.end.detail == EXCHANGE or call_of(chain) in POINT_TO_POINT for chain in chains)
    if sends or exchanging(case) or (not recorded and never_called(case)):
        return None  # in sends and receives, which are no call that all are in, and which RAS does not count
    if not case.job.covered:
        return only_some_are_here(case, "a rank there may be elsewhere")
    levels = [card.sm_active for card in cards if card.sm_active is not None]
    if max(levels, default=0.0) - min(levels, default=0.0) > SAME_FOOTPRINT:
        return (
            None  # a card that does not look like the others is in another kernel, before or instead of the collective
        )
    at_one_line = len({show(chain.start.frame) for chain in chains}) == 1 and all(chain.start.stack for chain in chains)
    if (graph is not None and graph.edges) or not (recorded or at_one_line):
        return None
    own, moved = carried(case, WINDOW_SECONDS), between_ranks(case)
    if moved is None:
        return case.lacks("network") or Missing(witness="network", reason="the interfaces were not read twice")
    if moved > SILENT_BYTES_PER_SECOND:
        return None
    ports = (case.history.latest(r.Network, *key) for key in case.history.entities(r.Network))
    rdma = any(port is not None and port.reading.kind == "rdma" for port in ports)
    return SameCall(chains, graph, recorded, counted, own, moved, rdma)


def only_some_are_here(case: Case, why: str) -> Missing:
    """That ranks of the job are on other machines, where they would have to be looked at."""
    reason = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
    return Missing(witness="ranks", reason=reason, advice=f"run perfwatch attach on the other nodes too: {why}")


def stands_out(card: Regime, cards: Sequence[Regime]) -> bool:
    """True if a card differs from the one in the middle of all of them."""
    levels = sorted(one.sm_active or 0.0 for one in cards)
    return abs((card.sm_active or 0.0) - levels[len(levels) // 2]) > SAME_FOOTPRINT


# What travels between the ranks


def has_arrived(flow: Flow | None, on_cards: bool) -> bool:
    """True if nothing is under way over the ranks' connections, and what is exchanged goes over these: gloo has nothing else."""
    return flow is not None and (flow.delivered if on_cards else flow.owes_nothing)


def carried(case: Case, seconds: float) -> Flow | None:
    """What went over the ranks' connections, of what they carried the least; RDMA ports and NVLink count in the rate.

    None: not every rank's were read twice.
    """
    flows = [flow(case.history, rank.pid, seconds) for rank in case.ranks]
    known = [one for one in flows if one is not None]
    if not known or len(known) < len(flows):
        return None
    rates = (*(one.bytes_per_second for one in known), *_rates(case, ("rdma",), seconds))
    return Flow(
        sum(rates) + _nvlink_bytes_per_second(case, seconds),
        sum(one.queued_bytes for one in known),
        sum(one.retransmits for one in known),
        min(one.carried_bytes for one in known),
        sum(one.standing_bytes for one in known),
    )


def travelling(case: Case, seconds: float) -> float | None:
    """Bytes a second over the last ``seconds``, all interfaces (the loopback too) and cards together; None: not known."""
    rates = _rates(case, ("netdev", "rdma"), seconds)
    return sum(rates) + _nvlink_bytes_per_second(case, seconds) if rates else None


def between_ranks(case: Case) -> float | None:
    """Bytes a second over the ranks' own connections lately; where these were not read, all that travels. None: not known."""
    own = carried(case, WINDOW_SECONDS)
    return travelling(case, WINDOW_SECONDS) if own is None else own.bytes_per_second


def travels(case: Case) -> bool | None:
    """True if anything goes over the ranks' own connections now; None: those of no rank, or not yet of all, were read twice.

    Of very many ranks on one machine only the first are read: what all of them wait in goes over theirs, too.
    """
    read = [rank.pid for rank in case.ranks if case.history.latest(r.Traffic, rank.pid) is not None]
    flows = [newest_flow(case.history, pid) for pid in read]
    known = [one.bytes_per_second for one in flows if one is not None]
    return None if not known or len(known) < len(flows) else sum(known) > SILENT_BYTES_PER_SECOND


def _rates(case: Case, kinds: tuple[str, ...], seconds: float) -> list[float]:
    """Of each interface or port of these kinds, in each direction, as far as they were read twice."""
    history = case.history
    newest = ((key, history.latest(r.Network, *key)) for key in history.entities(r.Network))
    keys = [key for key, interface in newest if interface is not None and interface.reading.kind in kinds]
    directions: tuple[Callable[[r.Network], float], ...] = (lambda one: one.received_bytes, lambda one: one.sent_bytes)
    rates = (
        (history.rate(r.Network, *key, of=of, seconds=span) for span in (seconds, SHORTEST_SECONDS))
        for key in keys
        for of in directions
    )
    return [known[0] for each in rates if (known := [rate for rate in each if rate is not None])]


def _nvlink_bytes_per_second(case: Case, seconds: float) -> float:
    """The busiest card's, in its busier direction; 0 where no card tells."""
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid, seconds)]
    return max((card.nvlink_mib_per_second or 0.0 for card in cards), default=0.0) * MEBIBYTE
