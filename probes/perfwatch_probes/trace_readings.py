"""What a profiler's trace says of one rank, folded: evidence that a capture adds to the recording.

Source: torch.profiler (Kineto) through ``perfwatch capture torch``. Shares are of the time that the trace covers. ``None``:
not in this trace (no GPU, no Python stacks).
"""

import msgspec

from perfwatch_probes.reading import Reading


class CaptureWindow(Reading, frozen=True, kw_only=True):
    """A capture of ours has begun or ended; the job may stand still for it. Source: ``perfwatch capture``."""

    kind: str  # torch, nsys, ncu, ...
    at_work: bool


class KernelShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel in one pass of the step. ``family``: gemm, attention, norm, elementwise, reduce, copy, collective ..."""

    name: str
    family: str
    part: str  # forward, backward, optimizer, other
    count: int
    seconds: float
    exposed_seconds: float | None = None  # of a collective: while nothing else ran on the card


class SyncPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place at which the host waits for the card. ``where``: the innermost frame of the program, else torch's operation."""

    call: str
    where: str
    count: int
    seconds: float


class HostShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame, a module or an operation, and how long the training thread was in it (nothing below it that is listed)."""

    name: str
    count: int
    seconds: float


class TorchTrace(Reading, frozen=True, kw_only=True):
    """One rank's trace. Times are seconds in the window, not per step."""

    pid: int
    rank: int | None = None
    window_seconds: float
    steps: int = 0  # optimizer steps that ended in the window
    step_seconds: float | None = None
    # Seconds of an average step on the host: data, forward, backward, optimizer, outside (in no operation of torch), waits by name.
    phases: dict[str, float] = {}
    outside_frames: tuple[
        HostShare, ...
    ] = ()  # of the program, between the steps' operations and in waits (with stacks)
    gpu_busy_share: float | None = None  # from the first kernel on that was launched in the window
    gpu_busy_seconds: float | None = None
    families: dict[str, float] = {}  # share of the card's busy time
    parts: dict[str, float] = {}  # forward, backward, optimizer, other: share of the card's busy time
    kernels: tuple[KernelShare, ...] = ()  # the longest
    launches: int = 0  # of kernels and graphs, by the host
    kernels_in_step: float | None = None
    kernel_seconds: float | None = None  # of an average kernel
    communication_share: float | None = None
    exposed_communication_share: float | None = None
    copy_share: float | None = None  # copies between host and card
    exposed_copy_share: float | None = None  # of them, while no kernel ran
    pageable_copy_bytes: int | None = None
    pageable_copies: int | None = None
    syncs: tuple[SyncPoint, ...] = ()
    idle: dict[str, float] = {}  # what the training thread did while the card had nothing to do: shares of the window
    idle_frames: tuple[HostShare, ...] = ()  # of the program, in that time (with stacks)
    idle_modules: tuple[HostShare, ...] = ()
    operations: tuple[HostShare, ...] = ()  # torch's, on the training thread
    launch_bound_share: float | None = None  # the card waits while the host prepares its next kernel
    full_precision_gemm_share: float | None = None  # of the card's busy time: matrix products outside the tensor cores
    # Attention's plain implementation, forward alone: of the card's busy time, of the host's where there is none; 0.0: not used.
    math_attention_share: float | None = None
    math_attention_calls: int = 0
    stacks: bool = False
