"""A link of the GPU is slower than it can be: fewer lanes, an older generation, or errors that are sent again."""

from perfwatch.triage.cards.accelerated import Accelerated, accelerated, slow_on_gpu
from perfwatch.triage.cards.links import WINDOW_SECONDS, ceiling_mib_per_second, lane_speed, traffic_mib_per_second
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Gpu, GpuSample

CAUSE = Cause("degraded_link", "slow", "node", (Gpu, GpuSample))

IN_USE = 0.1  # of the time with a kernel resident, or so many MiB/s on the link
IN_USE_MIB_PER_SECOND = 100.0
REPLAYS_PER_SECOND = 1.0  # a few in an hour are normal
LOOKS = 0.9  # of the window below the maximum: a link is trained anew when the card wakes up
USED = 0.3  # of what the degraded link can do: then it is what the job waits for
SURE, NOTED = 0.92, 0.55
# MiB/s of one link in each direction: 25 GB/s, and 50 from Blackwell on (NVIDIA's data sheets: 18 links make 450 and 900 GB/s).
NVLINK_3_AND_4, NVLINK_5, BLACKWELL = 23_842.0, 47_684.0, (10, 0)


def judge(case: Case) -> Outcome:
    """Fires on a card in use whose link is below its maximum."""
    for one in accelerated(case):
        moved = traffic_mib_per_second(case.history, one.card)
        if (one.card.graphics or 0.0) < IN_USE and (moved or 0.0) < IN_USE_MIB_PER_SECOND:
            continue
        evidence, kept = _pcie(case, one.card.uuid)
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        used = moved / ceiling if ceiling and moved is not None else None
        matters = used is not None and used >= USED and one.card.waiting > 0.0
        down, left, sent = _nvlink(case, one)
        if down and sent >= USED:
            matters, kept, used = True, left, sent
        if evidence or down:
            return _finding(case, one, (*evidence, *down), kept, used, matters)
    return None


def _finding(
    case: Case, one: Accelerated, evidence: tuple[Evidence, ...], kept: float, used: float | None, matters: bool
) -> Outcome:
    what = "; ".join(f"{piece.claim}: {piece.observed}" for piece in evidence)
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=(1.0 - kept) * min(1.0, max(used or 0.0, one.card.waiting)) if matters else 0.0,
        explains=1.0 if matters else 0.0,
        confidence=SURE if matters else NOTED,
        summary=f"a link of {name_of(case.history, one.card.uuid)} is below what it can do: {what}",
        evidence=(
            *evidence,
            case.saw(
                "nvml",
                name_of(case.history, one.card.uuid),
                "uses the link",
                "not told by this card" if used is None else f"{used:.0%} of what it can do now",
            ),
        ),
        alternatives=(Alternative(cause="copy_bound", refuted_by="the link itself is below its maximum"),),
        next=("nvidia-smi -q -d PCIE; lspci -vv shows LnkSta against LnkCap: reseat the card, or drain the node",),
    )


def _pcie(case: Case, uuid: str) -> tuple[list[Evidence], float]:
    """What is wrong with PCIe, and the share of its speed that is left."""
    found: list[Evidence] = []
    seen = case.history.latest(Gpu, uuid)
    looks = [one.reading for one in case.history.series(GpuSample, uuid, seconds=WINDOW_SECONDS)]
    best = lane_speed(seen.reading.pcie_generation_max, seen.reading.pcie_width_max) if seen is not None else None
    speeds = [speed for look in looks if (speed := lane_speed(look.pcie_generation, look.pcie_width)) is not None]
    kept = max(speeds) / best if best and speeds else 1.0
    name = name_of(case.history, uuid)
    if seen is not None and best is not None and speeds and sum(s < best for s in speeds) >= LOOKS * len(speeds):
        last = next(look for look in reversed(looks) if look.pcie_width is not None)
        now = f"generation {last.pcie_generation} x{last.pcie_width}"
        most = f"generation {seen.reading.pcie_generation_max} x{seen.reading.pcie_width_max}"
        found.append(case.saw("nvml", name, "PCIe runs below its maximum", now, most))
    replays = case.history.rate(GpuSample, uuid, of=lambda s: s.pcie_replays, seconds=WINDOW_SECONDS)
    if replays is not None and replays >= REPLAYS_PER_SECOND:
        found.append(case.saw("nvml", name, "PCIe repeats packets", f"{replays:.1f} replays/s", "none"))
    return found, kept


def _nvlink(case: Case, one: Accelerated) -> tuple[list[Evidence], float, float]:
    """Whether links are down, the share of them that is left, and how much of what these can do is used."""
    seen, last = case.history.latest(Gpu, one.card.uuid), case.history.latest(GpuSample, one.card.uuid)
    links = seen.reading.nvlinks if seen is not None else None
    active = last.reading.nvlinks_active if last is not None else None
    if seen is None or not links or active is None or not 0 < active < links:
        return [], 1.0, 0.0  # none at all is how a card without a bridge looks
    each = NVLINK_5 if (seen.reading.compute_capability or (0, 0)) >= BLACKWELL else NVLINK_3_AND_4
    used = (one.card.nvlink_mib_per_second or 0.0) / (active * each)
    name = name_of(case.history, one.card.uuid)
    return [case.saw("nvml", name, "NVLinks are down", f"{active} of {links} active", "all")], active / links, used


RULES = (Rule(CAUSE, judge),)
