"""What a card is: the part of NVML's answers that does not change while a job runs."""

from perfwatch_probes.nvml_asking import Asking
from perfwatch_probes.readings import Gpu

_ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell",
    13: "rubin",
}  # fmt: skip  # nvmlDeviceArchitecture_t
# FP32 lanes ("CUDA cores") per streaming multiprocessor, by compute capability: CUDA C++ Programming Guide, "Arithmetic
# Instructions". NVML tells the cores of a card, not its multiprocessors.
_CORES_PER_SM = {
    (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128,
    (10, 0): 128, (10, 1): 128, (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS


def describe(card: Asking, index: int, driver_version: str, parent: Gpu | None = None) -> Gpu:
    """One card, or one MIG device of ``parent``. Raises Refused when the card cannot be reached, or does not say who it is.

    Cost: about 25 calls of 1 to 30 us, once.
    """
    capability = card.numbers("nvmlDeviceGetCudaComputeCapability")
    cores = card.number("nvmlDeviceGetNumGpuCores")
    per_sm = _CORES_PER_SM.get((capability[0], capability[1])) if capability else None
    mig = card.numbers("nvmlDeviceGetMigMode")
    power = card.number("nvmlDeviceGetEnforcedPowerLimit") or card.number("nvmlDeviceGetPowerManagementLimit")
    persistence = card.number("nvmlDeviceGetPersistenceMode")
    mode = card.number("nvmlDeviceGetComputeMode")
    if parent is not None:  # its own multiprocessors and memory; everything else is the card's
        sms = card.record("nvmlDeviceGetAttributes_v2").get("multiprocessorCount")
    else:
        sms = cores // per_sm if cores and per_sm else None
    architecture = card.number("nvmlDeviceGetArchitecture")
    return Gpu(
        uuid=card.nvml.text("nvmlDeviceGetUUID", card.handle),
        index=index,
        name=card.text("nvmlDeviceGetName") or "",
        driver_version=driver_version,
        architecture=_ARCHITECTURES.get(architecture) if architecture is not None else None,
        compute_capability=(capability[0], capability[1]) if capability else None,
        sms=int(sms) if sms else None,
        memory_bytes=card.record("nvmlDeviceGetMemoryInfo").get("total"),
        memory_bus_bits=card.number("nvmlDeviceGetMemoryBusWidth"),
        power_limit_watts=power / 1000 if power else None,
        sm_clock_max_mhz=card.number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
        memory_clock_max_mhz=card.number("nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK),
        pcie_generation_max=card.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width_max=card.number("nvmlDeviceGetMaxPcieLinkWidth"),
        nvlinks=None if parent else len(link_states(card)) or None,
        pci_bus=str(card.record("nvmlDeviceGetPciInfo_v3").get("busId", "")),
        minor=parent.minor if parent else card.number("nvmlDeviceGetMinorNumber"),
        gpm=bool(card.record("nvmlGpmQueryDeviceSupport").get("isSupportedDevice")) if parent is None else parent.gpm,
        mig=bool(mig[0]) if mig else None,
        parent_uuid=parent.uuid if parent else None,
        compute_mode=_COMPUTE_MODES.get(mode) if mode is not None else None,
        persistence=None if persistence is None else bool(persistence),
    )


def link_states(card: Asking) -> list[bool]:
    """Which NVLinks of a card are up; empty when it has none."""
    states = [card.number("nvmlDeviceGetNvLinkState", link) for link in range(MOST_LINKS)]
    return [bool(state) for state in states if state is not None]
