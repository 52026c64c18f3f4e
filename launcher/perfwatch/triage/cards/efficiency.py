"""How close the job is to what its hardware can do: tensor TFLOP/s, hardware and model FLOPs utilisation, memory bandwidth.

Achieved = share of cycles in which the tensor cores were busy x clock x FLOPs per clock x what such a cycle was measured to
bring: nothing is asked of the job. All rates are for dense 16-bit arithmetic (TF32 does half as much in a busy cycle, fp8 twice).
The first steps are left out, and middle and extreme values are given, never a bare mean.
"""

import bisect
from itertools import pairwise

from perfwatch.triage.cards.accelerated import trained_for
from perfwatch.triage.cards.gpu import activities
from perfwatch.triage.cards.hardware import (
    POWER_CAP,
    TERA,
    data_sheet_tflops,
    dram_peak_bytes_per_second,
    tensor_tflops_at,
    tensor_yield,
    unknown,
)
from perfwatch.triage.cards.thresholds import FEW_SAMPLES_OF_A_CARD
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, quantile
from perfwatch.triage.moving.progress import WARM_UP_STEPS
from perfwatch.verdict import CardFigures, Efficiency, ModelFigures, Spread
from perfwatch_probes.readings import Gpu, GpuSample, Steps

WINDOW_SECONDS = 60.0
MOSTLY_CAPPED = 0.5
STRETCH_SECONDS, STRETCH_STEPS = 1.0, 10  # at least, of each stretch of steps
WARM_UP_SECONDS = 2.0  # after the first step: the next ones still allocate, compile and tune
FEW_STEPS = 5
UNUSED_TENSOR = 0.005  # of the peak: then the rate says nothing
FLOPS_PER_PARAMETER = 6.0  # per token: 2 in the forward pass, 4 in the backward pass (Kaplan et al. 2020)
FLOPS_OF_ATTENTION = 12.0  # per token, layer, hidden unit and position (PaLM, appendix B)
# Counted as one step each: what a GAN's two optimizers do, or one optimizer for each layer (fused into the backward pass).
IMPOSSIBLE = "cannot be: check --params and --tokens-per-step (of one optimizer step), and whether an iteration makes several steps"
TOLD_BY = "in a container: --pid=host, or CUDA_VISIBLE_DEVICES of one card for each rank"
CONDITIONS = ("params", "tokens_per_step", "layers", "hidden", "sequence")


def efficiency(case: Case) -> Efficiency:
    """The figures of every card of the job that can be given, and of the model where it is known."""
    return case.history.once("efficiency", lambda: _efficiency(case))


def _efficiency(case: Case) -> Efficiency:
    cards: list[CardFigures] = []
    for rank in case.ranks:
        warm = trained_for(case, rank) - WARM_UP_SECONDS
        seconds = min(WINDOW_SECONDS, max(warm, WARM_UP_SECONDS))  # before the first steps the card had nothing to do
        for uuid in cards_of(case.history, rank.pid).uuids:
            figures = _card(case, uuid, rank.rank, seconds)
            if figures is not None and all(one.uuid != uuid for one in cards):
                cards.append(figures)
    return Efficiency(cards=tuple(cards), model=_model(case))


def _card(case: Case, uuid: str, rank: int | None, seconds: float) -> CardFigures | None:
    seen = case.history.latest(Gpu, uuid)
    looks = activities(case.history, uuid, seconds)
    if seen is None or (len(looks) < FEW_SAMPLES_OF_A_CARD and seen.reading.gpm is not False):
        return None
    card = seen.reading
    boost = _boost_mhz(case, card)
    samples = [
        one
        for source in (uuid, card.parent_uuid)
        for one in (case.history.series(GpuSample, source, seconds=seconds + 5.0) if source else ())
        if one.reading.sm_clock_mhz is not None
    ]  # a part of a card may have no clock of its own
    samples.sort(key=lambda one: one.at)
    times = [one.at for one in samples]
    tflops, at_clock, at_boost, capped = [], [], [], 0
    for one in looks:
        place = bisect.bisect_right(times, one.at) - 1
        sample = samples[place].reading if place >= 0 else None
        clock = sample.sm_clock_mhz if sample is not None else None
        now = tensor_tflops_at(card, clock)
        most = tensor_tflops_at(card, boost)
        if one.reading.tensor is None or now is None or most is None:
            continue
        capped += sample is not None and bool((sample.reasons or 0) & POWER_CAP)
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
        peak_tflops=tensor_tflops_at(card, boost),
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
    counting = [(rank, clock) for rank in case.ranks if (clock := case.steps(rank)) is not None]
    intervals = [interval for _, clock in counting[:1] for interval in clock.usual if interval > 0.0]
    steps = [pace for rank, _ in counting[:1] for pace in paces(case.history, rank.pid, WINDOW_SECONDS)]
    owned = [found for rank in case.ranks if (found := cards_of(case.history, rank.pid)).uuids]
    uuids = dict.fromkeys(uuid for found in owned for uuid in found.uuids)
    cards = [seen.reading for uuid in uuids if (seen := case.history.latest(Gpu, uuid)) is not None]
    peaks = [data_sheet_tflops(card) or tensor_tflops_at(card, _boost_mhz(case, card)) for card in cards]
    known = [peak for peak in peaks if peak is not None]
    turns = {steps_each_turn(case.history, rank.pid) for rank, _ in counting[:1]}
    if None in turns:
        return ModelFigures(missing="too many optimizers take turns to see how many steps are one of the model")
    if len(intervals) < FEW_STEPS or not steps:
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
        step_seconds=spread(intervals if turns == {1.0} else [1 / pace for pace in steps], 6),
        tflops_per_card=round(middle * peak, 1),
        peak_tflops=round(peak, 1),
        cards=count,
        missing="" if middle <= 1.0 else f"{middle:.0%} of {peak:,.0f} TFLOP/s x {count} {IMPOSSIBLE}",
    )


def paces(history: History, pid: int, seconds: float) -> list[float]:
    """Steps a second of each stretch of the last ``seconds``, oldest first; of few steps, of all of them together. Empty for none.

    The count decides, not the intervals: of steps that take turns (three short ones, then one that waits for data) the median interval
    is far from the rate, and of more steps than one sample lists only the newest are known. Where several optimizers take turns, a turn
    counts as a step; empty where it is not known how many belong together.
    """
    turn = steps_each_turn(history, pid)
    return [pace / turn for pace in _steps(history, pid, seconds)] if turn else []


def steps_each_turn(history: History, pid: int) -> float | None:
    """How many steps several optimizers make together, 1 for one; None where too many take turns."""
    newest = history.latest(Steps, pid)
    return newest.reading.steps_each_turn if newest is not None else 1.0


def _steps(history: History, pid: int, seconds: float) -> list[float]:
    marks = _warm(_marks(history, pid, seconds))
    if len(marks) < 2:
        return []
    found, begin = [], marks[0]
    for mark in marks[1:]:
        if mark[0] - begin[0] >= STRETCH_STEPS and mark[1] - begin[1] >= STRETCH_SECONDS:
            found.append(_pace(begin, mark))
            begin = mark
    whole = marks[-1][0] - marks[0][0] >= FEW_STEPS and marks[-1][1] > marks[0][1]
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
    return late if len(late) > FEW_STEPS else marks[steps:]


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
    capped = "its power cap holds the clock down" if (card.power_capped or 0.0) >= MOSTLY_CAPPED else ""
    return "achieved, in dense 16-bit arithmetic", "; ".join(filter(None, (rate, memory, capped))), ""


def headline(figures: Efficiency, case: Case) -> str:
    """The figures of the first card, as the end of a sentence; empty where there are none."""
    for card in figures.cards[:1]:
        if card.tensor_tflops is not None and card.hfu_at_boost is not None:
            if card.hfu_at_boost.p95 < UNUSED_TENSOR:
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
    return (
        f"MFU {model.mfu.p50:.1%} of {model.peak_tflops or 0:,.0f} TFLOP/s x {model.cards} "
        f"(p50; p95 {model.mfu.p95:.1%}, p99 {model.mfu.p99:.1%}), "
        f"{model.tokens_per_second.p50:,.0f} tokens/s"
    )
