"""What travels between the ranks: over their connections or the machine's interfaces, over RDMA ports, and over NVLink.

And what a card shows that does nothing else.
"""

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.hardware import ceiling_mib_per_second, dram_peak_bytes_per_second
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.flows import SHORTEST_SECONDS, SILENT_BYTES_PER_SECOND, Flow, flow, newest_flow
from perfwatch_probes import readings as r

MEBIBYTE = 2**20
# Measured on two H200 while 1 GiB is reduced in each step: 250 GiB/s over NVLink with tensor 0, DRAM 24 % and SM 26 %; with an
# optimizer beside it 175 GiB/s, tensor 3 %, DRAM 50 %, SM 50 %. A healthy data-parallel run: 16 GiB/s.
BUSY_NVLINK_MIB_PER_SECOND = 60 * 1024.0
# Of what the link can do, in each direction at once. Measured on two H100 whose NCCL goes through host memory: 0.34 and 0.38, and
# nothing over NVLink. Copies of batches go one way, and no kernel is on the card for them.
BUSY_PCIE = 0.2
TAKEN, TENSOR, SM = 0.8, 0.1, 0.65  # of the time, and of what each unit can do at most
# A collective reads and writes the card's memory too: 1.15 TB/s beside 250 GiB/s (two H200). What else the memory does, of its maximum:
# 0.33 on H200 and 0.40 on H100 where gradients of 1 GiB are reduced and applied in each step, which takes most of the step.
DRAM_BYTES_FOR_EACH_SENT = 4.3
DRAM_BESIDE = 0.45


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
        sum(rates) + nvlink_bytes_per_second(case, seconds),
        sum(one.queued_bytes for one in known),
        sum(one.retransmits for one in known),
        min(one.carried_bytes for one in known),
        sum(one.standing_bytes for one in known),
    )


def travelling(case: Case, seconds: float) -> float | None:
    """Bytes a second over the last ``seconds``, all interfaces (the loopback too) and cards together; None: not known."""
    rates = _rates(case, ("netdev", "rdma"), seconds)
    return sum(rates) + nvlink_bytes_per_second(case, seconds) if rates else None


def between_ranks(case: Case, seconds: float) -> float | None:
    """Bytes a second over the ranks' own connections; where these were not read, all that travels. None: not known."""
    own = carried(case, seconds)
    return travelling(case, seconds) if own is None else own.bytes_per_second


def travels(case: Case) -> bool | None:
    """Whether anything goes over the ranks' own connections now; None: those of no rank, or not yet of all, were read twice.

    Of very many ranks on one machine only the first are read: what all of them wait in goes over theirs, too.
    """
    read = [rank.pid for rank in case.ranks if case.history.latest(r.Traffic, rank.pid) is not None]
    flows = [newest_flow(case.history, pid) for pid in read]
    known = [one.bytes_per_second for one in flows if one is not None]
    return None if not known or len(known) < len(flows) else sum(known) > SILENT_BYTES_PER_SECOND


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


def only_sends(history: History, card: Regime) -> bool:
    """Whether a card is taken by collectives: NVLink or PCIe is busy, and the arithmetic and the memory of the card are not."""
    nvlink = card.nvlink_mib_per_second or 0.0
    return (
        (card.graphics or 0.0) >= TAKEN
        and (nvlink >= BUSY_NVLINK_MIB_PER_SECOND or through_host(history, card))
        and (card.tensor or 0.0) <= TENSOR
        and _dram_beside(history, card) <= DRAM_BESIDE
        and (card.sm_active is None or card.sm_active <= SM)
    )


def _dram_beside(history: History, card: Regime) -> float:
    """Share of the memory's bandwidth that no collective over NVLink explains."""
    described = history.latest(r.Gpu, card.uuid)
    peak = dram_peak_bytes_per_second(described.reading) if described is not None else None
    sent = (card.nvlink_mib_per_second or 0.0) * MEBIBYTE
    return (card.dram or 0.0) - (DRAM_BYTES_FOR_EACH_SENT * sent / peak if peak else 0.0)


def through_host(history: History, card: Regime) -> bool:
    """Whether so much goes to and fro over PCIe that kernels of collectives may send it, and not over NVLink."""
    ceiling = ceiling_mib_per_second(history, card.uuid)
    each_way = card.pcie_each_way_mib_per_second or 0.0
    return ceiling is not None and each_way >= BUSY_PCIE * ceiling and not card.nvlink_mib_per_second


def way(history: History, card: Regime) -> str:
    """What such a card sends over which link, in words."""
    if not through_host(history, card):
        return f"{(card.nvlink_mib_per_second or 0.0) / 1024:.0f} GiB/s over NVLink"
    links = unused_links(history, card)
    beside = f" and nothing over NVLink ({links} links are up)" if links else ""
    return f"{(card.pcie_each_way_mib_per_second or 0.0) / 1024:.0f} GiB/s over PCIe in each direction{beside}"


def unused_links(history: History, card: Regime) -> int:
    """NVLinks that are up while everything goes over PCIe."""
    seen = history.latest(r.GpuSample, card.uuid) if through_host(history, card) else None
    return (seen.reading.nvlinks_active or 0) if seen is not None else 0


def computes(card: Regime) -> bool:
    """Whether a card that is taken does more than a collective's kernels do."""
    return (card.graphics or 0.0) >= TAKEN and card.sm_active is not None and card.sm_active > SM


def _received(one: r.Network) -> float:
    return float(one.received_bytes)


def _sent(one: r.Network) -> float:
    return float(one.sent_bytes)
