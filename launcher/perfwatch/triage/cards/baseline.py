"""What a card did earlier in this very run, while it worked: "low" is relative to that, not to a number in a book."""

from dataclasses import dataclass

from perfwatch.triage.cards.activities import activities
from perfwatch.triage.history import History, median
from perfwatch_probes import readings as r

FEW_LOOKS = 5
RESIDENT = 0.3  # of the time: a look below it is no work
AWAKE = 0.5  # of the highest clock seen: a card that sleeps draws less for that alone, one at its power cap runs at 0.7
WORKING_DRAM = 0.005  # a kernel that spins moves nothing
WORKING_POWER = 1.3  # times the least power, where nothing else tells work from spinning


@dataclass(frozen=True)
class Baseline:
    """Middle values of the looks at work. None: it was not seen at work long enough, or does not tell."""

    graphics: float | None = None  # share of time with a kernel resident
    power_watts: float | None = None
    least_watts: float | None = None  # awake: an empty context, or a kernel that spins
    tensor: float | None = None
    dram: float | None = None
    nvlink_mib_per_second: float | None = None

    def shown(self) -> str:
        """In words; empty when nothing is known."""
        parts = [
            "" if self.graphics is None else f"graphics {self.graphics:.0%}",
            "" if self.tensor is None else f"tensor {self.tensor:.0%}",
            "" if self.dram is None else f"DRAM {self.dram:.0%}",
            "" if not self.nvlink_mib_per_second else f"NVLink {self.nvlink_mib_per_second:,.0f} MiB/s",
            "" if self.power_watts is None else f"{self.power_watts:.0f} W",
        ]
        known = ", ".join(part for part in parts if part)
        return f"{known} earlier in this run" if known else ""


def baseline(history: History, uuid: str, seconds: float) -> Baseline:
    """What the card did at work until ``seconds`` ago."""
    return history.once(("baseline", uuid, seconds), lambda: _baseline(history, uuid, seconds))


def _baseline(history: History, uuid: str, seconds: float) -> Baseline:
    until = history.at - seconds
    samples = [one for one in history.series(r.GpuSample, uuid) if one.at < until]
    looks = [one.reading for one in activities(history, uuid) if one.at < until]
    at_work = [a for a in looks if (a.graphics or 0.0) >= RESIDENT and (a.dram or 0.0) >= WORKING_DRAM]
    clocks = [one.reading.sm_clock_mhz for one in samples if one.reading.sm_clock_mhz is not None]
    awake = [one.reading for one in samples if (one.reading.sm_clock_mhz or 0) >= AWAKE * max(clocks, default=0)]
    least = min((one.power_watts for one in awake if one.power_watts is not None), default=None)
    working = [
        one.power_watts
        for one in awake
        if one.power_watts is not None
        and (one.utilisation or 0.0) >= RESIDENT
        and one.power_watts >= WORKING_POWER * (least or 0.0)
    ]
    enough = len(at_work) >= FEW_LOOKS
    return Baseline(
        graphics=median(a.graphics for a in at_work if a.graphics is not None) if enough else None,
        power_watts=median(working) if len(working) >= FEW_LOOKS else None,
        least_watts=least,
        tensor=median(a.tensor for a in at_work if a.tensor is not None) if enough else None,
        dram=median(a.dram for a in at_work if a.dram is not None) if enough else None,
        nvlink_mib_per_second=median(
            a.nvlink_received_mib_per_second for a in at_work if a.nvlink_received_mib_per_second is not None
        )
        if enough
        else None,
    )
