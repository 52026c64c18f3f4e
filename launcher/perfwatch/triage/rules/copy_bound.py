"""Copies between host and GPU hold the training back."""

from functools import partial

from perfwatch.triage.cards.accelerated import (
    FEW_SAMPLES,
    UNSEEN_CARD,
    Accelerated,
    accelerated,
    in_copy,
    line_of,
    monitored,
    slow_on_gpu,
)
from perfwatch.triage.cards.links import ceiling_mib_per_second, traffic_mib_per_second
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.slowness import LOST_SHARE, certainty
from perfwatch.verdict import Abstention, Alternative, Missing, Outcome
from perfwatch_probes.readings import Gpu, GpuSample, Stack

CAUSE = Cause("copy_bound", "slow", "user_code", (Stack, GpuSample))

TRAFFIC = 1024.0  # MiB/s: a healthy training moves some hundred
COPYING = 0.15  # of the samples
NEAR_CEILING = 0.6
MOSTLY = 0.5  # of the copies
UNTOLD = Missing(witness="pcie", reason="this card does not tell how many bytes cross its link")
OF_BATCHES = "DataLoader(pin_memory=True) and .to(device, non_blocking=True); send uint8 and convert on the card"
OF_ACTIVATIONS = (
    "save_on_cpu(pin_memory=True), for larger tensors only; or compute activations again (torch.utils.checkpoint)"
)


def judge(case: Case) -> Outcome:
    """Fires on a card that waits while bytes cross the link."""
    for one in accelerated(case):
        moved = traffic_mib_per_second(case.history, one.card)
        if one.card.waiting < LOST_SHARE or one.profile.samples < FEW_SAMPLES:
            continue
        copying = one.profile.share_where(partial(in_copy, case.history))
        if moved is None and copying >= COPYING:
            return Abstention(cause=CAUSE.name, missing=(UNTOLD,))
        if moved is None or moved < TRAFFIC:
            continue
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        full = ceiling is not None and moved >= NEAR_CEILING * ceiling
        if copying < COPYING and not full:
            continue
        return _finding(case, one, moved, ceiling, copying)
    return None


def _finding(case: Case, one: Accelerated, moved: float, ceiling: float | None, copying: float) -> Outcome:
    frame = line_of(one.profile, partial(in_copy, case.history))
    lost = min(one.card.waiting, max(copying, LOST_SHARE))
    saving = one.profile.share("saved_on_host") >= MOSTLY * copying > 0.0
    of = "" if ceiling is None else f", {moved / ceiling:.0%} of what the link can do"
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        explains=one.card.waiting if copying >= COPYING else None,
        frame=frame,
        confidence=min(certainty(lost), 1.0 if _link_known(case, one.card.uuid) else UNSEEN_CARD),
        summary=f"{moved / 1024:.1f} GiB/s cross PCIe while the GPU has no kernel to run {one.card.waiting:.0%} of the time"
        + (f"; the training thread copies {copying:.0%} of the time, mostly at {frame}" if frame else "")
        + (": save_on_cpu moves what backward needs to host memory" if saving else ""),
        evidence=(
            monitored(case, one, "has no kernel resident while bytes arrive", "copies beside the kernels"),
            case.saw(one.card.source, "pcie", "bytes cross the link", f"{moved:.0f} MiB/s{of}", "some hundred MiB/s"),
            case.saw(
                "stack",
                f"pid {one.rank.pid}",
                "stands at a line that copies",
                f"{copying:.0%} of {one.profile.samples} samples",
                "below 5 %",
            ),
        ),
        alternatives=(Alternative(cause="degraded_link", refuted_by="the link runs at its full generation and width"),),
        next=(OF_ACTIVATIONS if saving else OF_BATCHES,),
    )


def _link_known(case: Case, uuid: str) -> bool:
    """Whether it could be seen that the link runs as it should."""
    described, last = case.history.latest(Gpu, uuid), case.history.latest(GpuSample, uuid)
    return described is not None and last is not None and last.reading.pcie_width is not None


RULES = (Rule(CAUSE, judge),)
