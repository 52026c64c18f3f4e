"""Why a card's clock is held down, as NVML says it, and which looks at a clock count: those at work."""

from perfwatch_probes.readings import GpuSample

# NVML's clocks-event reasons (nvml.h). The software power cap (0x4) is not among them: it is normal at full load.
REASONS = {
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
HELD_DOWN = sum(REASONS)
IN_USE = 0.3  # of the time with a kernel resident: the clock of a card that idles is no news


def clock_at_work(look: GpuSample) -> float | None:
    """MHz, when the card was in use."""
    in_use = (look.utilisation or 0.0) >= IN_USE
    return float(look.sm_clock_mhz) if in_use and look.sm_clock_mhz is not None else None


def held_down(look: GpuSample) -> bool:
    """Whether the card says that something holds its clock down."""
    return bool((look.reasons or 0) & HELD_DOWN)
