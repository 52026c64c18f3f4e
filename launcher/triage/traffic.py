"""What travels between the ranks: over the machine's interfaces and RDMA ports, and over NVLink."""

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.gpu import regimes

MEBIBYTE = 2**20
SHORTEST_SECONDS = 12.0  # the interfaces are read every two seconds of a suspicion, every ten of a calm job


def travelling(case: Case, seconds: float) -> float | None:
    """Bytes a second over the last ``seconds``, all interfaces (the loopback too) and cards together; None: not known."""
    rates = []
    for key in case.history.entities(r.Network):
        interface = case.history.latest(r.Network, *key)
        if interface is None or interface.reading.kind == "tcp":  # the sum of the others
            continue
        for of in (_received, _sent):
            rate = case.history.rate(r.Network, *key, of=of, seconds=seconds)
            rate = case.history.rate(r.Network, *key, of=of, seconds=SHORTEST_SECONDS) if rate is None else rate
            rates.append(rate)
    known = [rate for rate in rates if rate is not None]
    if not known:
        return None
    return sum(known) + nvlink_bytes_per_second(case, seconds)


def nvlink_bytes_per_second(case: Case, seconds: float) -> float:
    """The busiest card's, in its busier direction; 0 where no card tells."""
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid, seconds)]
    return max((card.nvlink_mib_per_second or 0.0 for card in cards), default=0.0) * MEBIBYTE


def _received(one: r.Network) -> float:
    return float(one.received_bytes)


def _sent(one: r.Network) -> float:
    return float(one.sent_bytes)
