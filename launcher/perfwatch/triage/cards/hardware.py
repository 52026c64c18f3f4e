"""What a card and its link can do at most, and what holds its clock down.

A card that is not in the table is unknown, and nothing is assumed about it. Sources: NVIDIA's architecture white papers (V100,
Turing, A100, GA102, Ada, H100, Blackwell) for operations per tensor core and clock; checked against the data sheets: rate x
multiprocessors x boost clock gives 125 (V100), 65 (T4), 312 (A100), 125 (A10), 362 (L40S), 989 (H100 SXM), 2,250 (B200) TFLOP/s.

Two peaks, on purpose. Hardware utilisation is against this rate at the card's maximum clock, 1,071 on an H100 or H200 SXM at 1,980 MHz,
for that is what the card in hand can do; model FLOPs utilisation against the data sheet, 989 there (at 1,830 MHz), as papers have it.
"""

import re

from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.cards.thresholds import IN_USE, LATELY_SECONDS
from perfwatch.triage.history import History
from perfwatch_probes.readings import Gpu, GpuSample

# compute capability: dense 16-bit floating-point operations (a fused multiply-add is two) per clock and multiprocessor, with
# accumulation in fp32.
TENSOR_FLOPS: dict[tuple[int, int], int] = {
    (7, 0): 1024,  # Volta: 8 tensor cores x 64 fused multiply-adds
    (7, 2): 1024,  # Xavier
    (7, 5): 1024,  # Turing
    (8, 0): 2048,  # Ampere GA100: 4 x 256
    (8, 6): 1024,  # Ampere GA10x: 4 x 128
    (8, 7): 2048,  # Orin
    (8, 9): 1024,  # Ada: 4 x 128
    (9, 0): 4096,  # Hopper: 4 x 512
    (10, 0): 8192,  # Blackwell B200, GB200: 4 x 1024
    (10, 3): 8192,  # Blackwell Ultra
    (12, 0): 1024,  # Blackwell RTX
    (12, 1): 1024,
}
# These accumulate in fp32 at half the rate: GeForce (not TITAN RTX: 130.5 TFLOP/s, Turing white paper), and L40 (data sheet: half of L40S).
HALVED = re.compile(r"GeForce|\bL40G?\b")
HALVED_CAPABILITIES = frozenset({(7, 5), (8, 6), (8, 9), (12, 0)})
# TU116 and TU117 have Turing's compute capability and no tensor cores (NVIDIA's pages of GTX 16, MX, T and Quadro T).
WITHOUT_TENSOR = re.compile(r"GTX 16|\bMX[45]50\b|\bT(400|500|550|600|1000|1200|2000)\b")
# Products whose tensor cores do less in a clock than others of their architecture: by how much their makers do not say.
HELD_BACK = re.compile(r"\b(H20|L20|L2|A10G)\b")
# Dense 16-bit tensor TFLOP/s, accumulated in fp32, as on the data sheet (half of what it states with sparsity): what model FLOPs
# utilisation is usually measured against. The first that matches counts. Each row is from the data sheet of that product; where a
# sheet gives whole machines, it is named.
DATA_SHEET: tuple[tuple[str, float], ...] = (
    (r"V100S-PCIE", 130.0),
    (r"V100-PCIE", 112.0),
    (r"V100", 125.0),
    (r"\bT4\b", 65.0),
    (r"A100|A800", 312.0),
    (r"\bA30\b", 165.0),
    (r"\bA10\b", 125.0),
    (r"\bA40\b", 149.7),
    (r"\bL4\b", 121.0),
    (r"TITAN RTX", 130.5),
    (r"\bL40S\b", 362.0),
    (r"\bL40\b", 181.05),
    (r"\bH20\b", 148.0),
    (r"\bL20\b", 119.5),
    (r"\bL2\b", 96.5),
    (r"\bA10G\b", 70.0),
    (r"(H100|H200) (PCIe )?NVL", 835.0),
    (r"H[18]00 PCIe|H100 80GB HBM2e", 756.0),
    (r"H100|H200|H800", 989.0),
    (r"GB[23]00", 2500.0),  # GB200 and GB300 NVL72: 360 PFLOP/s with sparsity for 72
    (r"B[23]00", 2250.0),  # HGX B200 and HGX B300: 36 PFLOP/s with sparsity for 8
    (r"B100", 1750.0),  # HGX B100: 28 PFLOP/s with sparsity for 8
)
# What a Hopper card's tensor cores bring of tensor-active x clock x operations, by how busy it is. Nothing but such kernels one
# after the other: 0.87 to 0.93; busy half of the time 0.90 to 0.95, a quarter 0.93 to 1.05; a decoder's training 0.96. On six H200 and
# two H100, driver 580, against loops that count their own FLOPs: products of 1,024 to 12,288 in bf16, fp16, TF32 and fp8, a
# convolution, cuDNN's attention. Either the units rest within cycles that count as active, or the clock skips under load. Where the
# power cap holds the clock down far enough they bring all that they can: 1.01, 0.99 and 1.01 at 1,358 to 1,388 MHz, 0.96 at 1,436
# (twice), 0.91 from 1,476 on.
# Kernels of Ampere's mma.sync (FlashAttention 2) are active for half as long again as their arithmetic needs.
POWER_CAP = 0x4
SUSTAINED: dict[tuple[int, int], float] = {(9, 0): 0.918}
RESTED_BUSY, SUSTAINED_BUSY = 0.15, 0.6  # shares of the time with a kernel resident
WHOLE_MHZ, SUSTAINED_MHZ = 1390.0, 1480.0  # clocks between which what they bring falls to that
DATA_RATE = 2  # transfers per cycle of the memory clock that NVML tells (checked: T4, A10, A100, L40S, H200, RTX 4090)
MHZ = 1e6
TERA = 1e12
MIB = 2**20
# GB/s of payload per lane and direction, by generation: 128b/130b coding from 3.0 on (PCI-SIG), flits in 6.0.
GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563, 7: 15.125}
# NVML's clocks-event reasons (nvml.h). The software power cap (0x4) is not among them: it is normal at full load.
REASONS = {
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


def tensor_flops_per_clock(card: Gpu) -> int | None:
    """Dense 16-bit tensor FLOPs of the whole card in one clock; None for a card that is not in the table."""
    if card.compute_capability is None or card.sms is None or _not_as_its_kind(card):
        return None
    rate = TENSOR_FLOPS.get(card.compute_capability)
    if rate is None:
        return None
    halved = HALVED.search(card.name) is not None and card.compute_capability in HALVED_CAPABILITIES
    return rate * card.sms // (2 if halved else 1)


def _not_as_its_kind(card: Gpu) -> str:
    """Why the rate of its compute capability is not this product's; empty where it is."""
    if HELD_BACK.search(card.name):
        return "its tensor cores do less in a clock than others of their kind, and how much is not known"
    return "it has no tensor cores" if WITHOUT_TENSOR.search(card.name) else ""


def tensor_tflops_at(card: Gpu, clock_mhz: float | None) -> float | None:
    """Dense 16-bit tensor TFLOP/s at a clock; None where card or clock are not known."""
    per_clock = tensor_flops_per_clock(card)
    return None if per_clock is None or clock_mhz is None else per_clock * clock_mhz * MHZ / TERA


def tensor_yield(card: Gpu, busy: float | None, clock_mhz: float | None = None) -> float:
    """What is really computed of tensor-active x clock x operations, 0..1; ``busy``: share of the time with a kernel resident."""
    sustained = SUSTAINED.get(card.compute_capability, 1.0) if card.compute_capability is not None else 1.0
    by_load = 1.0 if busy is None else _between(busy, RESTED_BUSY, SUSTAINED_BUSY)
    by_clock = 1.0 if clock_mhz is None else _between(clock_mhz, WHOLE_MHZ, SUSTAINED_MHZ)
    return 1.0 - (1.0 - sustained) * by_load * by_clock


def _between(value: float, low: float, high: float) -> float:
    """How far a value is on the way from one to another: 0 to 1."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def data_sheet_tflops(card: Gpu) -> float | None:
    """Dense 16-bit tensor TFLOP/s as its maker states them; None for a product that is not in the table, and for a part of one."""
    if card.parent_uuid:
        return None
    return next((tflops for pattern, tflops in DATA_SHEET if re.search(pattern, card.name)), None)


def dram_peak_bytes_per_second(card: Gpu) -> float | None:
    """The most that the card's memory can move: bus width x memory clock x 2; None if not known."""
    if card.memory_bus_bits is None or card.memory_clock_max_mhz is None:
        return None
    return card.memory_bus_bits / 8 * card.memory_clock_max_mhz * MHZ * DATA_RATE


def unknown(card: Gpu) -> str:
    """Why nothing can be said about a card's peak; empty where it can."""
    if tensor_flops_per_clock(card) is not None:
        return ""
    if why := _not_as_its_kind(card):
        return f"{card.name}: {why}"
    if card.compute_capability is None:
        return f"{card.name}: its compute capability is not known"
    if card.compute_capability not in TENSOR_FLOPS:
        major, minor = card.compute_capability
        return f"{card.name} (compute capability {major}.{minor}) is not in the table of known cards"
    return f"{card.name}: it is not known how many multiprocessors it has"


# Its clock


def clock_at_work(look: GpuSample) -> float | None:
    """MHz, if the card was in use: the clock of one that idles is no news."""
    in_use = (look.utilisation or 0.0) >= IN_USE
    return float(look.sm_clock_mhz) if in_use and look.sm_clock_mhz is not None else None


def held_down(look: GpuSample) -> bool:
    """True if the card reports that something holds its clock down."""
    return any((look.reasons or 0) & bit for bit in REASONS)


# Its link to the host


def lane_speed(generation: int | None, width: int | None) -> float | None:
    """GB/s of a link in one direction; None for a generation that is not in the table."""
    if generation is None or width is None or generation not in GB_PER_LANE:
        return None
    return GB_PER_LANE[generation] * width


def ceiling_mib_per_second(history: History, uuid: str) -> float | None:
    """What the link of a card can do at most, in one direction, as it is trained now."""
    seen = history.latest(GpuSample, uuid)
    speed = lane_speed(seen.reading.pcie_generation, seen.reading.pcie_width) if seen is not None else None
    if speed is None:
        card = history.latest(Gpu, uuid)
        speed = lane_speed(card.reading.pcie_generation_max, card.reading.pcie_width_max) if card is not None else None
    return None if speed is None else speed * 1e9 / MIB


def traffic_mib_per_second(history: History, card: Regime) -> float | None:
    """The busier direction of a card's link, from its units or from its counters; None if neither is known."""
    if card.pcie_mib_per_second is not None:
        return card.pcie_mib_per_second
    received = history.rate(GpuSample, card.uuid, of=lambda s: s.pcie_received_bytes, seconds=LATELY_SECONDS)
    sent = history.rate(GpuSample, card.uuid, of=lambda s: s.pcie_sent_bytes, seconds=LATELY_SECONDS)
    known = [rate for rate in (received, sent) if rate is not None]
    return max(known) / MIB if known else None
