"""What travels between the ranks: over their connections, RDMA ports and NVLink."""

from collections.abc import Callable

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.case import Case
from perfwatch.triage.moving.flows import SHORTEST_SECONDS, SILENT_BYTES_PER_SECOND, Flow, flow, newest_flow
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch_probes import readings as r

MEBIBYTE = 2**20


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
