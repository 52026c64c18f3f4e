"""What travels between the ranks: over their connections or the machine's interfaces, over RDMA ports, and over NVLink."""

from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.gpu import regimes

MEBIBYTE = 2**20
LOST = 2  # sent again so often: a single loss happens
SHORTEST_SECONDS = 12.0  # the interfaces are read every two seconds of a suspicion, every ten of a calm job


@dataclass(frozen=True)
class Carried:
    """What the ranks' own connections carry, both ways and all together; RDMA ports and NVLink are in the rate too."""

    bytes_per_second: float
    queued_bytes: int  # written, and not confirmed by the other end
    retransmits: int  # within the window

    @property
    def lost(self) -> bool:
        """Whether what one rank sends does not reach the other: the kernel sends it again and again."""
        return self.queued_bytes > 0 and self.retransmits >= LOST

    def shown(self) -> str:
        """For a line of evidence."""
        parts = [f"{self.bytes_per_second / 1024:.1f} KiB/s"]
        parts += [f"{self.queued_bytes:,} bytes written and not confirmed"] if self.queued_bytes else []
        parts += [f"sent again {self.retransmits} times"] if self.retransmits else []
        return ", ".join(parts)


def carried(case: Case, seconds: float) -> Carried | None:
    """What went over the ranks' connections, whatever else the machine sends; None: not every rank's were read twice."""
    rate, queued, again = nvlink_bytes_per_second(case, seconds), 0, 0
    for rank in case.ranks:
        looks = case.history.series(r.Traffic, rank.pid, seconds=max(seconds, SHORTEST_SECONDS))
        if len(looks) < 2 or looks[0].reading.connections != looks[-1].reading.connections:
            return None
        first, last = looks[0].reading, looks[-1].reading
        moved = last.received_bytes - first.received_bytes + last.sent_bytes - first.sent_bytes
        rate += max(0, moved) / (looks[-1].at - looks[0].at)
        queued += last.queued_bytes
        again += max(0, last.retransmits - first.retransmits)
    return Carried(rate + sum(_rates(case, ("rdma",), seconds)), queued, again)


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
