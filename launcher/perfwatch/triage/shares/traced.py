"""What a trace of the job adds to a finding: the module, the kernel, the line behind what counters and stacks have shown.

A capture puts its reading into the recording. Here a finding that it agrees with is sharpened: one more independent witness,
so more confidence, and a name. One that it says nothing about stays as it is.
"""

from collections.abc import Callable

import msgspec

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.shares.thresholds import MUCH, NOTABLE
from perfwatch.verdict import Finding
from perfwatch_probes.readings import TorchTrace

WITNESS = "torch_trace"
LONGEST_AGO_SECONDS = 900.0  # an older trace is of other training
DOUBT_LEFT = 0.6  # of the doubt that remains when a trace agrees

# What a trace says: the share of the time, the claim, of what it is a share and what else was seen, what would be expected, and the
# name that it gives (a module, a kernel, a line).
Said = tuple[float, str, str, str, str]


def trace_of(case: Case, pid: int) -> TorchTrace | None:
    """The newest trace of a rank that still speaks of this training."""
    seen = case.history.latest(TorchTrace, pid)
    return seen.reading if seen is not None and case.at - seen.at <= LONGEST_AGO_SECONDS else None


def sharpened(case: Case, finding: Finding) -> Finding:
    """The finding, with what a trace of its culprit (or of any rank) says of the same."""
    speaks = SPEAKS.get(finding.cause)
    pids = [one.pid for one in finding.culprits if one.pid is not None] + [rank.pid for rank in case.ranks]
    for pid in dict.fromkeys(pids if speaks is not None else ()):
        trace = trace_of(case, pid)
        said = speaks(trace) if trace is not None and speaks is not None else None
        if trace is None or said is None or said[0] < (MUCH if speaks is _full_precision else NOTABLE):
            continue
        share, claim, more, expected, name = said
        seen, window = case.history.latest(TorchTrace, pid), f"a window of {duration(trace.window_seconds, 3)}"
        observed = f"{share:.0%} of {more.format(window=window)}"
        evidence = case.saw(WITNESS, f"pid {pid}", claim, observed, expected, seen.at if seen else None)
        return msgspec.structs.replace(
            finding,
            summary=f"{finding.summary}; a trace names {name}" if name else finding.summary,
            confidence=round(1.0 - DOUBT_LEFT * (1.0 - finding.confidence), 2),
            evidence=(*finding.evidence, evidence),
        )
    return finding


def _launches(trace: TorchTrace) -> Said:
    kernels = f", {trace.kernels_in_step:,.0f} kernels a step" if trace.kernels_in_step else ""
    where = [one.name for one in (*trace.idle_modules, *trace.idle_frames)]
    idle = {name: share for name, share in trace.idle.items() if name in ("forward", "backward", "optimizer", "python")}
    part = max(idle, key=lambda one: idle[one], default="python")
    name = where[0] if where else "Python between the operations" if part == "python" else f"the {part} pass"
    claim = "the card is idle while the host prepares its next kernel"
    most = f"{{window}}{kernels}, most of it in: {part}"
    return trace.launch_bound_share or 0.0, claim, most, "below 5 %", name


def _waits(trace: TorchTrace) -> Said | None:
    if not trace.syncs:
        return None
    worst, share = trace.syncs[0], sum(one.seconds for one in trace.syncs) / trace.window_seconds
    often = f"{{window}}, {worst.count} times in {worst.call}"
    return share, "the host waits for the card", often, "once in many steps", worst.where or worst.call


def _communicates(trace: TorchTrace) -> Said | None:
    worst = max(trace.kernels, key=lambda one: one.exposed_seconds or 0.0, default=None)
    if worst is None or not worst.exposed_seconds:
        return None
    claim, often = "only a collective runs on the card", f"{{window}}, {worst.count} times {worst.name}"
    name = f"{worst.name} in the {worst.part} pass"
    return trace.exposed_communication_share or 0.0, claim, often, "collectives beside kernels", name


def _copies(trace: TorchTrace) -> Said:
    pageable = f"{trace.pageable_copies} copies from pageable memory" if trace.pageable_copies else ""
    claim, more = "only a copy from or to the host runs on the card", f"{{window}}{pageable and ', '}{pageable}"
    return trace.exposed_copy_share or 0.0, claim, more, "copies beside kernels, from pinned memory", pageable


def _full_precision(trace: TorchTrace) -> Said:
    longest = next((one.name for one in trace.kernels if one.family == "gemm"), "")
    claim, of = "matrix products run outside the tensor cores", "the card's busy time in {window}"
    return trace.full_precision_gemm_share or 0.0, claim, of, "TF32 or bf16 kernels", longest


def _starves(trace: TorchTrace) -> Said:
    if trace.gpu_busy_share is not None:
        claim = "the card is idle while the training thread waits for the DataLoader"
        return trace.idle.get("data", 0.0), claim, "{window}", "below 2 %", ""
    # Of a training on the CPU the steps themselves tell.
    share = trace.phases.get("data", 0.0) / trace.step_seconds if trace.step_seconds else 0.0
    return share, "the training thread waits for the DataLoader", "a step in {window}", "below 5 %", ""


SPEAKS: dict[str, Callable[[TorchTrace], Said | None]] = {
    "host_bound_python": _launches,
    "synchronising": _waits,
    "exposed_communication": _communicates,
    "copy_bound": _copies,
    "wrong_precision": _full_precision,
    **dict.fromkeys(
        ("starved_by_network", "starved_by_storage", "starved_by_transforms", "serial_loading", "bursty_loading"),
        _starves,
    ),
}
