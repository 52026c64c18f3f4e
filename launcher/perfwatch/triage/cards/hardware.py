"""What a card and its link can do at most, what holds its clock down, and how near the job comes to that.

A card that is not in the table is unknown, and nothing is assumed about it. Sources: NVIDIA's architecture white papers (V100,
Turing, A100, GA102, Ada, H100, Blackwell) for operations per tensor core and clock; checked against the data sheets: rate x
multiprocessors x boost clock gives 125 (V100), 65 (T4), 312 (A100), 125 (A10), 362 (L40S), 989 (H100 SXM), 2,250 (B200) TFLOP/s.

Two peaks, on purpose. Hardware utilisation is against this rate at the card's maximum clock, 1,071 on an H100 or H200 SXM at 1,980 MHz,
for that is what the card in hand can do; model FLOPs utilisation against the data sheet, 989 there (at 1,830 MHz), as papers have it.

Achieved = share of cycles in which the tensor cores were busy x clock x FLOPs per clock x what such a cycle was measured to
bring: nothing is asked of the job. All rates are for dense 16-bit arithmetic (TF32 does half as much in a busy cycle, fp8 twice).
The first steps are left out, and middle and extreme values are given, never a bare mean.
"""

import bisect
import re
from itertools import pairwise

from perfwatch.triage.cards.gpu import FEW_SAMPLES_OF_A_CARD, IN_USE, UNUSED, Regime, activities
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, once, quantile
from perfwatch.triage.moving.progress import WARM_UP_STEPS
from perfwatch.triage.shares.budget import trained_for
from perfwatch.triage.shares.thresholds import LATELY_SECONDS, MINUTE_SECONDS, MOSTLY, SEVERAL_TIMES
from perfwatch.verdict import CardFigures, Efficiency, ModelFigures, Spread
from perfwatch_probes.readings import Gpu, GpuSample, Steps

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
SUSTAINED = 0.918
RESTED_BUSY, SUSTAINED_BUSY = 0.15, 0.6  # shares of the time with a kernel resident
WHOLE_MHZ, SUSTAINED_MHZ = 1390.0, 1480.0  # clocks between which what they bring falls to that
DATA_RATE = 2  # transfers per cycle of the memory clock that NVML tells (checked: T4, A10, A100, L40S, H200, RTX 4090)
COPIES_MIB_PER_SECOND = 1024.0  # over its link: launches alone, and a healthy training, move some hundred
MHZ = 1e6
TERA = 1e12
# GB/s of payload per lane and direction, by generation: 128b/130b coding from 3.0 on (PCI-SIG), flits in 6.0.
GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563, 7: 15.125}
# NVML's clocks-event reasons (nvml.h). The software power cap (0x4) is not among them: it is normal at full load.
REASONS = {0x08: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
STRETCH_SECONDS, STRETCH_STEPS = 1.0, 10  # at least, of each stretch of steps
WARM_UP_SECONDS = 2.0  # after the first step: the next ones still allocate, compile and tune
FLOPS_PER_PARAMETER = 6.0  # per token: 2 in the forward pass, 4 in the backward pass (Kaplan et al. 2020)
FLOPS_OF_ATTENTION = 12.0  # per token, layer, hidden unit and position (PaLM, appendix B)
# Counted as one step each: what a GAN's two optimizers do, or one optimizer for each layer (fused into the backward pass).
IMPOSSIBLE = "cannot be: check --params and --tokens-per-step (of one optimizer step), and whether an iteration makes several steps"
TOLD_BY = "in a container: --pid=host, or CUDA_VISIBLE_DEVICES of one card for each rank"
CONDITIONS = ("params", "tokens_per_step", "layers", "hidden", "sequence")


def tensor_tflops_at(card: Gpu, clock_mhz: float | None) -> float | None:
    """Dense 16-bit tensor TFLOP/s of the whole card at a clock; None where card or clock are not known."""
    if clock_mhz is None or unknown(card) or card.compute_capability is None or card.sms is None:
        return None
    halved = HALVED.search(card.name) is not None and card.compute_capability in HALVED_CAPABILITIES
    return TENSOR_FLOPS[card.compute_capability] * card.sms // (2 if halved else 1) * clock_mhz * MHZ / TERA


def tensor_yield(card: Gpu, busy: float | None, clock_mhz: float | None = None) -> float:
    """What is really computed of tensor-active x clock x operations, 0..1; ``busy``: share of the time with a kernel resident."""
    sustained = SUSTAINED if card.compute_capability == (9, 0) else 1.0
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
    why = ""
    if HELD_BACK.search(card.name):
        why = "its tensor cores do less in a clock than others of their kind, and how much is not known"
    elif WITHOUT_TENSOR.search(card.name):
        why = "it has no tensor cores"
    elif card.compute_capability is None:
        why = "its compute capability is not known"
    elif card.compute_capability not in TENSOR_FLOPS:
        major, minor = card.compute_capability
        return f"{card.name} (compute capability {major}.{minor}) is not in the table of known cards"
    elif card.sms is None:
        why = "it is not known how many multiprocessors it has"
    return f"{card.name}: {why}" if why else ""


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
    return None if width is None or generation not in GB_PER_LANE else GB_PER_LANE[generation] * width


def ceiling_mib_per_second(history: History, uuid: str) -> float | None:
    """What the link of a card can do at most, in one direction, as it is trained now."""
    seen = history.latest(GpuSample, uuid)
    speed = lane_speed(seen.reading.pcie_generation, seen.reading.pcie_width) if seen is not None else None
    if speed is None:
        card = history.latest(Gpu, uuid)
        speed = lane_speed(card.reading.pcie_generation_max, card.reading.pcie_width_max) if card is not None else None
    return None if speed is None else speed * 1e9 / 2**20


def traffic_mib_per_second(history: History, card: Regime) -> float | None:
    """The busier direction of a card's link, from its units or from its counters; None if neither is known."""
    if card.pcie_mib_per_second is not None:
        return card.pcie_mib_per_second
    directions = (lambda s: s.pcie_received_bytes, lambda s: s.pcie_sent_bytes)
    rates = (history.rate(GpuSample, card.uuid, of=one, seconds=LATELY_SECONDS) for one in directions)
    return max((rate / 2**20 for rate in rates if rate is not None), default=None)


@once
def efficiency(case: Case) -> Efficiency:
    """The figures of every card of the job that can be given, and of the model where it is known."""
    cards: dict[str, CardFigures] = {}
    for rank in case.ranks:
        warm = trained_for(case, rank) - WARM_UP_SECONDS
        seconds = min(MINUTE_SECONDS, max(warm, WARM_UP_SECONDS))  # before the first steps the card had nothing to do
        for uuid in cards_of(case.history, rank.pid).uuids:
            if uuid not in cards and (figures := _card(case, uuid, rank.rank, seconds)) is not None:
                cards[uuid] = figures
    return Efficiency(cards=tuple(cards.values()), model=_model(case))


def _card(case: Case, uuid: str, rank: int | None, seconds: float) -> CardFigures | None:
    seen = case.history.latest(Gpu, uuid)
    looks = activities(case.history, uuid, seconds)
    if seen is None or (len(looks) < FEW_SAMPLES_OF_A_CARD and seen.reading.gpm is not False):
        return None
    card = seen.reading
    most = tensor_tflops_at(card, _boost_mhz(case, card))
    sources = [source for source in (uuid, card.parent_uuid) if source]  # a part of a card may have no clock of its own
    samples = [one for source in sources for one in case.history.series(GpuSample, source, seconds=seconds + 5.0)]
    samples = sorted((one for one in samples if one.reading.sm_clock_mhz is not None), key=lambda one: one.at)
    tflops, at_clock, at_boost, capped = [], [], [], 0
    for one in looks:
        place = bisect.bisect_right(samples, one.at, key=lambda sample: sample.at) - 1
        clock = samples[place].reading.sm_clock_mhz if place >= 0 else None
        now = tensor_tflops_at(card, clock)
        if one.reading.tensor is None or now is None or most is None:
            continue
        capped += bool((samples[place].reading.reasons or 0) & POWER_CAP)
        used = one.reading.tensor * tensor_yield(card, one.reading.graphics, clock)
        tflops.append(used * now)
        at_clock.append(used)
        at_boost.append(used * now / most)
    dram = [one.reading.dram for one in looks if one.reading.dram is not None]
    peak = dram_peak_bytes_per_second(card)
    return CardFigures(
        uuid=uuid,
        gpu=index_of(case.history, uuid),
        name=card.name,
        rank=rank,
        unknown=unknown(card),
        tensor_tflops=spread(tflops),
        peak_tflops=most,
        hfu_at_boost=spread(at_boost, 4),
        hfu_at_clock=spread(at_clock, 4),
        power_capped=round(capped / len(tflops), 2) if tflops else None,
        dram_share=spread(dram, 4),
        dram_gb_per_second=None if peak is None else spread([share * peak / 1e9 for share in dram]),
        dram_peak_gb_per_second=None if peak is None else round(peak / 1e9, 1),
    )


def _model(case: Case) -> ModelFigures | None:
    """Model FLOPs utilisation, where the user has said what the model is, the agent counts steps, and the cards are known."""
    told = {name: case.session.conditions.get(name) for name in CONDITIONS}
    params, tokens, layers, hidden, sequence = (
        float(value) if isinstance(value, int | float) and value > 0 else None for value in told.values()
    )
    if params is None or tokens is None:
        return None
    rank = next((rank for rank in case.ranks if case.steps(rank) is not None), None)
    clock, newest = (case.steps(rank), case.history.latest(Steps, rank.pid)) if rank is not None else (None, None)
    # How many steps several optimizers make together, 1 for one; None where too many take turns.
    turn = newest.reading.steps_each_turn if newest is not None else 1.0
    intervals = [interval for interval in (clock.usual if clock is not None else ()) if interval > 0.0]
    steps = [pace / turn for pace in _paces(case.history, rank.pid)] if rank is not None and turn else []
    owned = [found for rank in case.ranks if (found := cards_of(case.history, rank.pid)).uuids]
    uuids = dict.fromkeys(uuid for found in owned for uuid in found.uuids)
    cards = [seen.reading for uuid in uuids if (seen := case.history.latest(Gpu, uuid)) is not None]
    peaks = [data_sheet_tflops(card) or tensor_tflops_at(card, _boost_mhz(case, card)) for card in cards]
    known = [peak for peak in peaks if peak is not None]
    if turn is None:
        return ModelFigures(missing="too many optimizers take turns to see how many steps are one of the model")
    if len(intervals) < SEVERAL_TIMES or not steps:
        return ModelFigures(missing="no step times: start the job with perfwatch run")
    if not cards:
        return ModelFigures(missing="no GPU of this job was seen")
    if any(found.guessed for found in owned):
        return ModelFigures(missing=f"it is not known which GPUs the job uses ({len(cards)} in sight); {TOLD_BY}")
    if not known or len(known) < len(peaks):
        return ModelFigures(missing="the peak of the cards is not known")
    attention = FLOPS_OF_ATTENTION * layers * hidden * sequence if layers and hidden and sequence else 0.0
    flops = (FLOPS_PER_PARAMETER * params + attention) * tokens
    peak, count = sum(known) / len(known), _count(case, len(known))
    mfu = [flops * pace / (count * peak * TERA) for pace in steps]
    middle = quantile(mfu, 0.5) or 0.0
    return ModelFigures(
        mfu=spread(mfu, 4) if middle <= 1.0 else None,
        tokens_per_second=spread([tokens * pace for pace in steps]),
        step_seconds=spread(intervals if turn == 1.0 else [1 / pace for pace in steps], 6),
        tflops_per_card=round(middle * peak, 1),
        peak_tflops=round(peak, 1),
        cards=count,
        missing="" if middle <= 1.0 else f"{middle:.0%} of {peak:,.0f} TFLOP/s x {count} {IMPOSSIBLE}",
    )


def _paces(history: History, pid: int) -> list[float]:
    """Steps a second of each stretch of the last minute, oldest first; of few steps, of all of them together. Empty for none.

    The count decides, not the intervals: of steps that take turns (three short ones, then one that waits for data) the median interval
    is far from the rate, and of more steps than one sample lists only the newest are known.
    """
    marks = _warm(_marks(history, pid, MINUTE_SECONDS))
    if len(marks) < 2:
        return []
    found, begin = [], marks[0]
    for mark in marks[1:]:
        if mark[0] - begin[0] >= STRETCH_STEPS and mark[1] - begin[1] >= STRETCH_SECONDS:
            found.append(_pace(begin, mark))
            begin = mark
    whole = marks[-1][0] - marks[0][0] >= SEVERAL_TIMES and marks[-1][1] > marks[0][1]
    return found or ([_pace(marks[0], marks[-1])] if whole else [])


def _pace(begin: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[0] - begin[0]) / (end[1] - begin[1])


def _marks(history: History, pid: int, seconds: float) -> list[tuple[int, float]]:
    """(count, when it was reached) of every step that was reported, in order."""
    at: dict[int, float] = {}
    for one in history.series(Steps, pid, seconds=seconds):
        if one.reading.step_ago_seconds is None:
            continue
        when, count = one.at - one.reading.step_ago_seconds, one.reading.count
        at.setdefault(count, when)
        for back, interval in enumerate(reversed(one.reading.interval_seconds), 1):
            when -= interval
            at.setdefault(count - back, when)
    marks = sorted(at.items())
    return [later for earlier, later in pairwise([(0, float("-inf")), *marks]) if later[1] > earlier[1]]


def _warm(marks: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Without the warm-up, where the beginning of the run is among them: its first steps, a tenth of them all at most, and seconds."""
    if not marks or marks[0][0] > WARM_UP_STEPS:
        return marks
    steps = min(WARM_UP_STEPS, len(marks) // 10)
    late = [mark for mark in marks[steps:] if mark[1] - marks[0][1] >= WARM_UP_SECONDS]
    return late if len(late) > SEVERAL_TIMES else marks[steps:]


def _count(case: Case, seen: int) -> int:
    """The cards of the whole job: as many as its ranks here use, which may share one; other machines are taken for the same."""
    if case.job.covered:
        return seen
    return max(seen, round(seen / len(case.ranks) * (case.job.world_size or 1)))


def _boost_mhz(case: Case, card: Gpu) -> float | None:
    """The highest clock of the multiprocessors; a part of a card has that of the whole."""
    whole = case.history.latest(Gpu, card.parent_uuid) if card.parent_uuid else None
    return card.sm_clock_max_mhz or (whole.reading.sm_clock_max_mhz if whole is not None else None)


def spread(values: list[float], digits: int = 1) -> Spread | None:
    """Middle and extreme values; None for nothing."""
    if not values:
        return None
    p50, p95, p99 = (round(quantile(values, share) or 0.0, digits) for share in (0.5, 0.95, 0.99))
    return Spread(p50=p50, p95=p95, p99=p99)


def in_words(card: CardFigures) -> tuple[str, str, str]:
    """Claim, observed and expected of a piece of evidence about one card."""
    memory = ""
    if card.dram_share is not None and card.dram_gb_per_second is not None:
        memory = f"DRAM {card.dram_gb_per_second.p50:,.0f} GB/s, {card.dram_share.p50:.0%} of peak"
    if card.unknown:
        return "its peak is not known", "; ".join(filter(None, (card.unknown, memory))), "a card in the table"
    if card.tensor_tflops is None or card.hfu_at_boost is None or card.hfu_at_clock is None:
        return "its tensor cores cannot be seen", memory or "no performance monitoring", "Hopper or newer"
    rate = (
        f"{card.tensor_tflops.p50:,.0f} TFLOP/s in the tensor cores (p95 {card.tensor_tflops.p95:,.0f}), "
        f"{card.hfu_at_boost.p50:.1%} of {card.peak_tflops or 0:,.0f} at boost, {card.hfu_at_clock.p50:.1%} at the actual clock"
    )
    capped = "its power cap holds the clock down" if (card.power_capped or 0.0) >= MOSTLY else ""
    return "achieved, in dense 16-bit arithmetic", "; ".join(filter(None, (rate, memory, capped))), ""


def headline(figures: Efficiency, case: Case) -> str:
    """The figures of the first card, as the end of a sentence; empty where there are none."""
    for card in figures.cards[:1]:
        if card.tensor_tflops is not None and card.hfu_at_boost is not None:
            if card.hfu_at_boost.p95 < UNUSED:
                return "its tensor cores are not used"
            # TF32 does half as many: which of the two it is cannot be seen.
            rate = f"{card.tensor_tflops.p50:,.0f} TFLOP/s if 16-bit"
            share = f"HFU {card.hfu_at_boost.p50:.0%} of {card.peak_tflops or 0:,.0f}"
            text = f"{name_of(case.history, card.uuid)} {rate}, {share}"
            return text + (f", DRAM {card.dram_share.p50:.0%}" if card.dram_share is not None else "")
        return card.unknown
    return ""


def mfu_in_words(model: ModelFigures) -> str:
    """One line about the model."""
    if model.mfu is None or model.tokens_per_second is None:
        return model.missing
    peak = f"{model.peak_tflops or 0:,.0f} TFLOP/s x {model.cards}"
    extremes = f"(p50; p95 {model.mfu.p95:.1%}, p99 {model.mfu.p99:.1%})"
    return f"MFU {model.mfu.p50:.1%} of {peak} {extremes}, {model.tokens_per_second.p50:,.0f} tokens/s"
