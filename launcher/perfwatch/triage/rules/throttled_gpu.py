"""The GPU runs below its clock: it is too hot, or its power is cut."""

from perfwatch.triage.cards.accelerated import Accelerated, accelerated, slow_on_gpu
from perfwatch.triage.cards.clocks import IN_USE, REASONS, clock_at_work, held_down
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import median, quantile
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Gpu, GpuSample

CAUSE = Cause("throttled_gpu", "slow", "node", (Gpu, GpuSample))

LOOKS = 0.3  # of the looks that name a reason
LOST_CLOCK = 0.05  # below it nobody would notice
USUAL = 0.9  # quantile of the clocks before: what this run had when nothing held it back
SURE = 0.93


def judge(case: Case) -> Outcome:
    """Fires on a card in use that says why its clock is down."""
    for one in accelerated(case):
        looks = [seen.reading for seen in case.history.series(GpuSample, one.card.uuid, seconds=WINDOW_SECONDS)]
        known = [look for look in looks if look.reasons is not None and (look.utilisation or 0.0) >= IN_USE]
        named = [look for look in known if held_down(look)]
        clock = median(float(look.sm_clock_mhz) for look in named if look.sm_clock_mhz is not None)
        if not known or len(named) < LOOKS * len(known) or clock is None:
            continue
        usual, whose = _usual_clock(case, one.card.uuid)
        if usual is None:
            continue
        down = 1.0 - clock / usual
        if down < LOST_CLOCK:
            continue
        bits = {text for bit, text in REASONS.items() if any((look.reasons or 0) & bit for look in named)}
        return _finding(case, one, down, clock, usual, whose, " and ".join(sorted(bits)), len(named) / len(known))
    return None


def _finding(
    case: Case, one: Accelerated, down: float, clock: float, usual: float, whose: str, why: str, share: float
) -> Outcome:
    name = name_of(case.history, one.card.uuid)
    last = case.history.latest(GpuSample, one.card.uuid)
    heat = last.reading.temperature_celsius if last is not None else None
    lost = down * (one.card.graphics or 0.0)
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        explains=max(lost, 0.9 if down >= 2 * LOST_CLOCK else lost),
        confidence=SURE,
        summary=f"{name} runs at {clock:.0f} MHz instead of {usual:.0f} ({whose}) because of {why}"
        + (f", at {heat} °C" if heat is not None else ""),
        evidence=(
            case.saw("nvml", name, "says why its clock is down", f"{why} in {share:.0%} of the looks", "none"),
            case.saw("nvml", name, "SM clock", f"{clock:.0f} MHz", f"{usual:.0f} MHz ({whose})"),
        ),
        alternatives=(
            Alternative(cause="gpu_bound", refuted_by="the software power cap alone would be normal; this is not it"),
        ),
        next=("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at airflow and power supplies, drain the node",),
    )


def _usual_clock(case: Case, uuid: str) -> tuple[float | None, str]:
    """What the clock ought to be: this card's own before, that of the job's other cards, or the card's maximum."""
    before = [
        clock
        for seen in case.history.series(GpuSample, uuid)
        if seen.at < case.at - WINDOW_SECONDS
        and not held_down(seen.reading)
        and (clock := clock_at_work(seen.reading)) is not None
    ]
    if before:
        return quantile(before, USUAL), "earlier in this run"
    others = [
        clock
        for other in {one for rank in case.ranks for one in cards_of(case.history, rank.pid).uuids} - {uuid}
        if (seen := case.history.latest(GpuSample, other)) is not None
        and (clock := clock_at_work(seen.reading)) is not None
    ]
    if others:
        return median(others), "the job's other cards"
    card = case.history.latest(Gpu, uuid)
    most = card.reading.sm_clock_max_mhz if card is not None else None
    return (None if most is None else float(most)), "its maximum"


RULES = (Rule(CAUSE, judge),)
