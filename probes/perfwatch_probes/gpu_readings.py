"""Readings about GPUs, as the driver tells them through NVML. ``perfwatch_probes.readings`` says what all share.

A GPU is named by its ``uuid`` everywhere: its index depends on who asks (CUDA_VISIBLE_DEVICES, a container). Shares are
0 to 1 of the card's maximum over the interval of the reading; ``None`` means that this card or driver does not tell.
"""

from perfwatch_probes.reading import Reading


class Gpu(Reading, frozen=True, kw_only=True):
    """What a card is (written on change). Source: NVML's device, memory, clock, PCIe and NVLink queries."""

    uuid: str
    index: int  # NVML's own order (PCI bus order), which is nvidia-smi's
    name: str
    driver_version: str = ""
    architecture: str | None = None  # nvmlDeviceGetArchitecture: volta turing ampere ada hopper blackwell ...
    compute_capability: tuple[int, int] | None = None
    sms: int | None = None  # streaming multiprocessors (nvmlDeviceGetNumGpuCores / cores per SM, where known)
    memory_bytes: int | None = None
    memory_bus_bits: int | None = None
    power_limit_watts: float | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    pcie_generation_max: int | None = None  # the most that card and slot can do together
    pcie_width_max: int | None = None
    nvlinks: int | None = None  # links that the card has
    pci_bus: str = ""
    minor: int | None = None  # /dev/nvidiaN
    gpm: bool | None = None  # GPU performance monitoring: Hopper and newer
    mig: bool | None = None  # cut into MIG devices now
    parent_uuid: str | None = None  # of the card, when this is one of its MIG devices
    compute_mode: str | None = None
    persistence: bool | None = None
    lost: bool = (
        False  # the driver no longer reaches it ("GPU is lost", "GPU requires restart", "Unknown Error" to everything)
    )

    @property
    def number(self) -> str:
        """Its ``uuid`` while it cannot say who it is, for it was lost before it was asked."""
        return f"gpu {self.index}"

    @property
    def stand_in(self) -> bool:
        """True if this is told in place of such a card: it is over when the card of that index is described."""
        return self.uuid == self.number


class GpuSample(Reading, frozen=True, kw_only=True):
    """One look at a card, at most ten a second. Counters are cumulative, and None where they were not read. Source: NVML.

    utilisation is "a kernel was resident", never work: it reads 100 % for one kernel that spins. It is refreshed about five
    times a second, power about ten times.
    """

    uuid: str
    utilisation: float | None = None  # share of time in which at least one kernel was resident
    memory_utilisation: float | None = None
    encoder_utilisation: float | None = None
    decoder_utilisation: float | None = None
    jpeg_utilisation: float | None = None
    optical_flow_utilisation: float | None = None
    memory_used_bytes: int | None = None
    bar1_used_bytes: int | None = None
    protected_used_bytes: int | None = None  # of confidential computing
    power_watts: float | None = None
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    reasons: int | None = None  # clocks-event reasons, NVML's bit mask
    power_violation_ns: int | None = None  # cumulative time below the clocks asked for, because of power
    thermal_violation_ns: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_received_bytes: int | None = (
        None  # cumulative (field value), host to card; None where it may have wrapped unseen
    )
    pcie_sent_bytes: int | None = None
    pcie_replays: int | None = None
    nvlink_received_kib: int | None = None  # cumulative, all links
    nvlink_sent_kib: int | None = None
    nvlinks_active: int | None = None


class GpuActivity(Reading, frozen=True, kw_only=True):
    """What the card's units did in the interval that ENDS at the time of the record. Source: GPM (Hopper and newer).

    Only written when the counters were refreshed in between: an interval shorter than a refresh reads all zero, and that is
    no reading at all. Shares are 0 to 1.
    """

    uuid: str
    interval_seconds: float
    graphics: float | None = None  # any engine had work: what "utilisation" ought to be
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    fp32: float | None = None
    fp16: float | None = None
    fp64: float | None = None
    integer: float | None = None
    hmma: float | None = None  # half-precision tensor work, part of ``tensor``
    imma: float | None = None
    dmma: float | None = None
    pcie_received_mib_per_second: float | None = None  # host to card
    pcie_sent_mib_per_second: float | None = None
    nvlink_received_mib_per_second: float | None = None
    nvlink_sent_mib_per_second: float | None = None
    c2c_received_mib_per_second: float | None = None  # from the CPU of the same module (Grace)
    c2c_sent_mib_per_second: float | None = None
    others: dict[str, float] = {}  # asked for by name (``nvml_metrics``): shares 0 to 1, traffic in MiB/s


class GpuErrors(Reading, frozen=True, kw_only=True):
    """Error counters of a card (every ten seconds, and when a counter changed). Source: NVML."""

    uuid: str
    corrected: int | None = None  # ECC, volatile: since the driver was loaded
    uncorrected: int | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    nvlink_errors: int | None = None  # replay, recovery and CRC errors of all links


class GpuEvent(Reading, frozen=True, kw_only=True):
    """Something that the driver announced: an Xid. Source: NVML's event set, or the kernel log (``source``)."""

    uuid: str
    xid: int
    source: str = "nvml"


class GpuProcess(Reading, frozen=True, kw_only=True):
    """A process that has a context on a card (on change, and once a second while there is one).

    pid: as NVML tells it, a pid of the host; ``local_pid``: the same process as we see it, None when it cannot be known.
    """

    uuid: str
    pid: int
    local_pid: int | None = None
    kind: str = "compute"  # compute, graphics, mps
    memory_bytes: int | None = None
    sm_utilisation: float | None = None
    gone: bool = False  # it was there and is no more


class GpuBinding(Reading, frozen=True, kw_only=True):
    """Which cards a process of the job may use and uses (on change), and how that is known.

    uuids: the cards, in the order in which the process counts them. how: ``nvml`` (its context is listed), ``device_files``
    (/proc/PID/fd of /dev/nvidiaN), ``environment`` (CUDA_VISIBLE_DEVICES), ``local_rank`` (a guess from LOCAL_RANK).
    """

    pid: int
    uuids: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()  # cards that CUDA_VISIBLE_DEVICES leaves to it
    how: str = ""
    cuda: bool | None = None  # the CUDA driver library is mapped and a device file is open


class GpuSilence(Reading, frozen=True, kw_only=True):
    """A call into the driver that has not come back. Source: the sampler's own deadline."""

    call: str  # what was asked: "sample", "processes", "events", "init"
    uuid: str | None = None
    waited_seconds: float
    state: str | None = None  # of the thread that waits in the driver: R S D
    abandoned: int = 0  # samplers left behind in the kernel so far
