"""What travels between the ranks: over their connections or the machine's interfaces, over RDMA ports, and over NVLink."""

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.flows import SHORTEST_SECONDS, Flow, flow
from perfwatch.triage.gpu import regimes

MEBIBYTE = 2**20


def carried(case: Case, seconds: float) -> Flow | None:
    """What went over the ranks' connections, RDMA ports and NVLink in the rate too; None: not every rank's were read twice."""
    flows = [flow(case.history, rank.pid, seconds) for rank in case.ranks]
    known = [one for one in flows if one is not None]
    if not known or len(known) < len(flows):
        return None
    rates = (*(one.bytes_per_second for one in known), *_rates(case, ("rdma",), seconds))
    return Flow(
        sum(rates) + nvlink_bytes_per_second(case, seconds),
        sum(one.queued_bytes for one in known),
        sum(one.retransmits for one in known),
    )


def travelling(case: Case, seconds: float) -> float | None:
    """Bytes a second over the last ``seconds``, all interfaces (the loopback too) and cards together; None: not known."""
    rates = _rates(case, ("netdev", "rdma"), seconds)
    return sum(rates) + nvlink_bytes_per_second(case, seconds) if rates else None


def _rates(case: Case, kinds: tuple[str, ...], seconds: float) -> list[float]:
    """Of each interface or port of these kinds, in each direction, as far as they were read twice."""
    found = []
    for key in case.history.entities(r.Network):
        interface = case.history.latest(r.Network, *key)
        if interface is None or interface.reading.kind not in kinds:
            continue
        for of in (_received, _sent):
            rate = case.history.rate(r.Network, *key, of=of, seconds=seconds)
            found.append(case.history.rate(r.Network, *key, of=of, seconds=SHORTEST_SECONDS) if rate is None else rate)
    return [rate for rate in found if rate is not None]


def nvlink_bytes_per_second(case: Case, seconds: float) -> float:
    """The busiest card's, in its busier direction; 0 where no card tells."""
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid, seconds)]
    return max((card.nvlink_mib_per_second or 0.0 for card in cards), default=0.0) * MEBIBYTE


def _received(one: r.Network) -> float:
    return float(one.received_bytes)


def _sent(one: r.Network) -> float:
    return float(one.sent_bytes)
