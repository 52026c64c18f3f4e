"""The link between host and card: what it can do, what it does, and what it ought to be able to do."""

from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.history import History
from perfwatch_probes import readings as r

WINDOW_SECONDS = 20.0
# GB/s of payload per lane and direction, by generation: 128b/130b coding from 3.0 on (PCI-SIG), flits in 6.0.
GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563, 7: 15.125}
MIB = 2**20


def lane_speed(generation: int | None, width: int | None) -> float | None:
    """GB/s of a link in one direction; None where the generation is not known to us."""
    if generation is None or width is None or generation not in GB_PER_LANE:
        return None
    return GB_PER_LANE[generation] * width


def ceiling_mib_per_second(history: History, uuid: str) -> float | None:
    """What the link of a card can do at most, in one direction, as it is trained now."""
    seen = history.latest(r.GpuSample, uuid)
    speed = lane_speed(seen.reading.pcie_generation, seen.reading.pcie_width) if seen is not None else None
    if speed is None:
        card = history.latest(r.Gpu, uuid)
        speed = lane_speed(card.reading.pcie_generation_max, card.reading.pcie_width_max) if card is not None else None
    return None if speed is None else speed * 1e9 / MIB


def traffic_mib_per_second(history: History, card: Regime) -> float | None:
    """The busier direction of a card's link, from its units or from its counters; None where it tells neither."""
    if card.pcie_mib_per_second is not None:
        return card.pcie_mib_per_second
    received = history.rate(r.GpuSample, card.uuid, of=lambda s: s.pcie_received_bytes, seconds=WINDOW_SECONDS)
    sent = history.rate(r.GpuSample, card.uuid, of=lambda s: s.pcie_sent_bytes, seconds=WINDOW_SECONDS)
    known = [rate for rate in (received, sent) if rate is not None]
    return max(known) / MIB if known else None
