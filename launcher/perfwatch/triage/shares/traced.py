"""What a trace of the job adds to a finding: the module, the kernel, the line behind what counters and stacks have shown.

A capture puts its reading into the recording. Here a finding that it agrees with is sharpened: one more independent witness,
so more confidence, and a name. One that it says nothing about stays as it is.
"""

from collections.abc import Callable

import msgspec

from perfwatch.text import short_time
from perfwatch.triage.case import Case
from perfwatch.triage.shares.thresholds import MUCH, NOTABLE
from perfwatch.verdict import Evidence, Finding
from perfwatch_probes.readings import TorchTrace

WITNESS = "torch_trace"
LONGEST_AGO_SECONDS = 900.0  # an older trace is of other training
DOUBT_LEFT = 0.6  # of the doubt that remains when a trace agrees

# What a trace says: the claim, what was seen, what would be expected, and the name that it gives (a module, a kernel, a line).
Said = tuple[str, str, str, str]


def trace_of(case: Case, pid: int) -> TorchTrace | None:
    """The newest trace of a rank that still speaks of this training."""
    seen = case.history.latest(TorchTrace, pid)
    return seen.reading if seen is not None and case.at - seen.at <= LONGEST_AGO_SECONDS else None


def sharpened(case: Case, finding: Finding) -> Finding:
    """The finding, with what a trace of its culprit (or of any rank) says of the same."""
    speaks = SPEAKS.get(finding.cause)
    if speaks is None:
        return finding
    pids = [one.pid for one in finding.culprits if one.pid is not None] + [rank.pid for rank in case.ranks]
    for pid in dict.fromkeys(pids):
        trace = trace_of(case, pid)
        said = speaks(trace) if trace is not None else None
        if said is not None:
            return _with(case, finding, pid, said)
    return finding


def _with(case: Case, finding: Finding, pid: int, said: Said) -> Finding:
    claim, observed, expected, name = said
    seen = case.history.latest(TorchTrace, pid)
    evidence: Evidence = case.saw(WITNESS, f"pid {pid}", claim, observed, expected, seen.at if seen else None)
    return msgspec.structs.replace(
        finding,
        summary=f"{finding.summary}; a trace names {name}" if name else finding.summary,
        confidence=round(1.0 - DOUBT_LEFT * (1.0 - finding.confidence), 2),
        evidence=(*finding.evidence, evidence),
    )


def _launches(trace: TorchTrace) -> Said | None:
    if (trace.launch_bound_share or 0.0) < NOTABLE:
        return None
    kernels = f", {trace.kernels_in_step:,.0f} kernels a step" if trace.kernels_in_step else ""
    where = [*trace.idle_modules, *trace.idle_frames]
    name = f"{where[0].name}" if where else ""
    idle = {name: share for name, share in trace.idle.items() if name in ("forward", "backward", "optimizer", "python")}
    part = max(idle, key=lambda one: idle[one], default="python")
    return (
        "the card is idle while the host prepares its next kernel",
        f"{trace.launch_bound_share:.0%} of {_window(trace)}{kernels}, most of it in: {part}",
        "below 5 %",
        name or {"python": "Python between the operations"}.get(part, f"the {part} pass"),
    )


def _waits(trace: TorchTrace) -> Said | None:
    waiting = sum(one.seconds for one in trace.syncs)
    if waiting < NOTABLE * trace.window_seconds or not trace.syncs:
        return None
    worst = trace.syncs[0]
    return (
        "the host waits for the card",
        f"{waiting / trace.window_seconds:.0%} of {_window(trace)}, {worst.count} times in {worst.call}",
        "once in many steps",
        worst.where or worst.call,
    )


def _communicates(trace: TorchTrace) -> Said | None:
    exposed = trace.exposed_communication_share or 0.0
    collectives = [one for one in trace.kernels if one.exposed_seconds]
    if exposed < NOTABLE or not collectives:
        return None
    worst = max(collectives, key=lambda one: one.exposed_seconds or 0.0)
    return (
        "only a collective runs on the card",
        f"{exposed:.0%} of {_window(trace)}, {worst.count} times {worst.name}",
        "collectives beside kernels",
        f"{worst.name} in the {worst.part} pass",
    )


def _copies(trace: TorchTrace) -> Said | None:
    exposed = trace.exposed_copy_share or 0.0
    if exposed < NOTABLE:
        return None
    pageable = f"{trace.pageable_copies} copies from pageable memory" if trace.pageable_copies else ""
    return (
        "only a copy from or to the host runs on the card",
        f"{exposed:.0%} of {_window(trace)}" + (f", {pageable}" if pageable else ""),
        "copies beside kernels, from pinned memory",
        pageable,
    )


def _full_precision(trace: TorchTrace) -> Said | None:
    share = trace.full_precision_gemm_share or 0.0
    if share < MUCH:
        return None
    longest = next((one.name for one in trace.kernels if one.family == "gemm"), "")
    return (
        "matrix products run outside the tensor cores",
        f"{share:.0%} of the card's busy time in {_window(trace)}",
        "TF32 or bf16 kernels",
        longest,
    )


def _starves(trace: TorchTrace) -> Said | None:
    if trace.gpu_busy_share is None:
        return _waits_for_data(trace)
    share = trace.idle.get("data", 0.0)
    if share < NOTABLE:
        return None
    return (
        "the card is idle while the training thread waits for the DataLoader",
        f"{share:.0%} of {_window(trace)}",
        "below 2 %",
        "",
    )


def _waits_for_data(trace: TorchTrace) -> Said | None:
    """Of a training on the CPU: by the steps themselves."""
    share = trace.phases.get("data", 0.0) / trace.step_seconds if trace.step_seconds else 0.0
    if share < NOTABLE:
        return None
    return (
        "the training thread waits for the DataLoader",
        f"{share:.0%} of a step in {_window(trace)}",
        "below 5 %",
        "",
    )


def _window(trace: TorchTrace) -> str:
    return f"a window of {short_time(trace.window_seconds)}"


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
