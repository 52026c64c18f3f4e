"""The summary of torch.profiler traces: the first rank in full, the others where they differ. Pure."""

from collections.abc import Mapping, Sequence

from perfwatch.text import duration
from perfwatch_probes.readings import HostShare, TorchTrace

WORTH_TELLING = 0.02  # of the window, or of the card's time
MUCH = 0.1  # of a step
MOST_TOLD = 5
PHASES = {"outside": "outside of torch's operations"}
IDLE = {
    "data": "waits for data",
    "sync": "waits for the card itself",
    "optimizer": "is in the optimizer",
    "backward": "launches the backward pass",
    "forward": "launches the forward pass",
    "python": "is in Python",
}


def summary(traces: Sequence[TorchTrace]) -> list[str]:
    """The first rank in full, the others where they differ: a line each."""
    if not traces:
        return []
    lines = [f"{_rank(traces[0])}:" if len(traces) > 1 else "", *_one(traces[0])]
    lines += [_beside(one, traces[0]) for one in traces[1:]]
    return [line for line in lines if line]


def _one(trace: TorchTrace) -> list[str]:
    if not (trace.operations or trace.steps or trace.gpu_busy_share):
        return ["nothing of torch ran in the window"]
    lines = [_steps(trace), _outside(trace)]
    if trace.gpu_busy_share is not None:
        lines += [_card(trace), *_kernels(trace), *_copies(trace), *_gaps(trace)]
    elif trace.launches:
        lines.append(
            f"{trace.launches:,} kernels were launched and none of them ran in the window: the host is further ahead of its "
            "card than that; --seconds 2 shows them"
        )
    else:
        lines.append(f"no GPU in this trace; longest on the host: {_hosts(trace.operations)}")
    lines += _findings(trace)
    return [line for line in lines if line]


def _steps(trace: TorchTrace) -> str:
    if trace.step_seconds is None:
        return f"{trace.steps} optimizer steps in {duration(trace.window_seconds, 3)}"
    phases = _listed({PHASES.get(name, name): seconds / trace.step_seconds for name, seconds in trace.phases.items()})
    return f"{trace.steps} steps of {duration(trace.step_seconds, 3)}: {phases}"


def _outside(trace: TorchTrace) -> str:
    """Where the program is while it waits or is in no operation of torch, if that is much of a step."""
    busy = sum(trace.phases.get(name, 0.0) for name in ("data", "forward", "backward", "optimizer"))
    if not trace.outside_frames or (trace.step_seconds or 0.0) - busy < MUCH * (trace.step_seconds or 0.0):
        return ""
    return f"in waits and outside of torch's operations it is mostly at {_hosts(trace.outside_frames)}"


def _card(trace: TorchTrace) -> str:
    kernels = f"; {trace.kernels_in_step:,.0f} kernels a step" if trace.kernels_in_step else ""
    size = f" of {duration(trace.kernel_seconds, 3)}" if trace.kernel_seconds and kernels else ""
    return f"the GPU is busy {trace.gpu_busy_share:.0%} of the time: {_listed(trace.families)}{kernels}{size}"


def _kernels(trace: TorchTrace) -> list[str]:
    busy = trace.gpu_busy_seconds or 0.0
    longest = [one for one in trace.kernels if busy and one.seconds / busy > WORTH_TELLING][:MOST_TOLD]
    lines = [f"passes on the GPU: {_listed(trace.parts)}"]
    if longest:
        lines.append(
            "longest kernels: " + ", ".join(f"{one.name} {one.seconds / busy:.0%} ({one.part})" for one in longest)
        )
    return lines


def _copies(trace: TorchTrace) -> list[str]:
    lines = []
    if (trace.exposed_communication_share or 0.0) > WORTH_TELLING:
        worst = max(
            (one for one in trace.kernels if one.exposed_seconds),
            key=lambda one: one.exposed_seconds or 0.0,
            default=None,
        )
        which = f", mostly {worst.name} in the {worst.part} pass" if worst is not None else ""
        lines.append(f"{trace.exposed_communication_share:.0%} of the time only a collective runs on the card{which}")
    if (trace.exposed_copy_share or 0.0) > WORTH_TELLING:
        pageable = f", {trace.pageable_copies} of them from pageable memory" if trace.pageable_copies else ""
        lines.append(f"{trace.exposed_copy_share:.0%} of the time only a copy from or to the host runs{pageable}")
    return lines


def _gaps(trace: TorchTrace) -> list[str]:
    told = {IDLE.get(name, name): share for name, share in trace.idle.items() if share > WORTH_TELLING}
    if not told:
        return []
    lines = ["the GPU has nothing to do while the training thread " + _listed(told)]
    if trace.idle_frames:
        lines.append(f"in that time it is mostly at {_hosts(trace.idle_frames)}")
    if trace.idle_modules:
        lines.append(f"in that time it is mostly in the modules {_hosts(trace.idle_modules)}")
    return lines


def _findings(trace: TorchTrace) -> list[str]:
    lines = []
    syncs = [one for one in trace.syncs if one.seconds > WORTH_TELLING * trace.window_seconds]
    if syncs:
        places = ", ".join(
            f"{one.where or one.call} ({one.count} times, {duration(one.seconds, 3)})" for one in syncs[:MOST_TOLD]
        )
        lines.append(f"the host waits for the card at {places}")
    if (trace.full_precision_gemm_share or 0.0) > WORTH_TELLING:
        lines.append(
            f"{trace.full_precision_gemm_share:.0%} of the card's time are matrix products in full FP32, outside the tensor "
            'cores: torch.set_float32_matmul_precision("high"), or autocast'
        )
    if trace.math_attention_calls:
        lines.append(f"attention is computed the plain way (SDPA's math fallback), {trace.math_attention_calls} times")
    if not trace.stacks and (syncs or (trace.launch_bound_share or 0.0) > 0.2):
        lines.append("which lines these are: perfwatch capture torch --stacks")
    return lines


def _beside(trace: TorchTrace, first: TorchTrace) -> str:
    """One more rank in a line."""
    parts = []
    if trace.step_seconds is not None:
        parts.append(f"steps of {duration(trace.step_seconds, 3)}")
    if trace.gpu_busy_share is not None:
        parts.append(f"GPU busy {trace.gpu_busy_share:.0%}")
        parts.append(f"{trace.exposed_communication_share or 0.0:.0%} exposed communication")
    return f"{_rank(trace)}: {', '.join(parts)}" if parts else ""


def _rank(trace: TorchTrace) -> str:
    return f"rank {trace.rank}" if trace.rank is not None else f"pid {trace.pid}"


def _listed(shares: Mapping[str, float]) -> str:
    told = [(name, share) for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share > WORTH_TELLING]
    return ", ".join(f"{name} {share:.0%}" for name, share in told[:MOST_TOLD])


def _hosts(entries: Sequence[HostShare]) -> str:
    return ", ".join(f"{one.name} ({duration(one.seconds, 3)})" for one in entries[:3])
