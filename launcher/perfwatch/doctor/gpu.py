"""The checks of GPUs: the sampler's own process queries the driver."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from perfwatch.doctor.checkup import Ability, limited, missing, ok
from perfwatch_probes import readings as r
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import NONE_HERE
from perfwatch_probes.gpu_binding import bind
from perfwatch_probes.gpu_files import device_files, sees_host_pids
from perfwatch_probes.probe import Unavailable

PATIENCE_SECONDS = 10.0  # a driver without persistence mode wakes its cards first
SETTLE_SECONDS = 0.6  # after the first sample: processes are listed
UNITS_SECONDS = 5.0  # after it, GPM has been looked at twice, of a driver that many ask at once too
CHEAP_SECONDS = 2.0  # a start that takes longer is worth a word

HOW = {
    "nvml": "the driver lists its context",
    "device_files": "by the device files that it holds",
    "environment": "by its CUDA_VISIBLE_DEVICES",
    "local_rank": "a guess from its LOCAL_RANK",
}


class Asked(Protocol):
    """What the driver is asked through: ``perfwatch_probes.gpu.GpuProbe``."""

    def look(self, full: bool = False) -> list[tuple[float, r.Reading]]:
        """(CLOCK_MONOTONIC, reading) since the last look."""
        ...

    @property
    def trouble(self) -> Unavailable | None:
        """Why nothing comes now, if so."""
        ...

    def wait(self, seconds: float) -> None:
        """Until something comes, or for so long."""
        ...

    def close(self) -> None:
        """End the sampler."""
        ...


class GpuCheckup:
    """One short look at all GPUs.

    Args:
        probe: the sampler.
        clock: monotonic seconds.
    """

    def __init__(self, probe: Asked, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe, self._clock = probe, clock
        self.gpus: dict[str, r.Gpu] = {}
        self.contexts: list[r.GpuProcess] = []
        self._refused: dict[str, r.ProbeCall] = {}  # GPM, by card
        self._monitored: set[str] = set()
        self._started_seconds = 0.0

    def examine(self) -> list[Ability]:
        """What the driver tells us, and whether the cards' units can be watched; our process is ended again."""
        try:
            trouble = self._look()
        except Unavailable as unavailable:
            trouble = unavailable
        finally:
            self._probe.close()
        if trouble is not None:
            if trouble.reason in NONE_HERE:
                return [ok("gpus", f"{trouble.reason}: GPUs are not watched")]
            return [missing("gpus", trouble.reason, trouble.advice)]
        return [self._cards(), self._gpm()]

    def _look(self) -> Unavailable | None:
        began = self._clock()
        ends = began + PATIENCE_SECONDS
        while (now := self._clock()) < ends or self._awaits_units(now - began):
            for _, reading in self._probe.look(full=True):
                if isinstance(reading, r.GpuSample) and not self._started_seconds:
                    self._started_seconds = now - began
                    ends = min(ends, now + SETTLE_SECONDS)
                self._remember(reading)
            if self._probe.trouble is not None:
                return self._probe.trouble
            self._probe.wait(min(0.1, max(0.01, ends - now)))
        return None if self.gpus else Unavailable("the NVIDIA driver has not answered yet", "nvidia-smi; dmesg | tail")

    def _awaits_units(self, elapsed_seconds: float) -> bool:
        """True if cards that have GPM have reported nothing of it yet, and may."""
        answered = self._monitored or self._refused or not any(gpu.gpm for gpu in self.gpus.values())
        return not answered and 0.0 < self._started_seconds and elapsed_seconds < self._started_seconds + UNITS_SECONDS

    def _remember(self, reading: r.Reading) -> None:
        if isinstance(reading, r.Gpu):
            self.gpus[reading.uuid] = reading
        elif isinstance(reading, r.GpuActivity):
            self._monitored.add(reading.uuid)
        elif isinstance(reading, r.GpuProcess):
            self.contexts.append(reading)
        elif isinstance(reading, r.ProbeCall) and reading.probe == "gpm" and reading.outcome != "ok":
            self._refused[reading.entity] = reading

    def _cards(self) -> Ability:
        cards = [gpu for gpu in self.gpus.values() if gpu.parent_uuid is None]
        parts = len(self.gpus) - len(cards)
        kinds = [
            f"{sum(one.name == name for one in cards)} x {name}"
            for name in dict.fromkeys(c.name for c in cards if not c.stand_in)
        ]
        finding = f"driver {cards[0].driver_version}: {', '.join(kinds)}" + (f", {parts} MIG devices" if parts else "")
        lost = [str(one.index) for one in cards if one.lost]
        if lost:
            return missing(
                "gpus", f"{finding}; lost: gpu {', '.join(lost)}", "dmesg | grep -i xid; then reset or reboot"
            )
        if any(one.local_pid is None for one in self.contexts):
            finding += "; its processes have pids of another namespace: cards are matched by device files"
        slow = self._started_seconds > CHEAP_SECONDS and any(one.persistence is False for one in cards)
        return (
            limited("gpus", f"{finding}; the driver takes seconds to start", "sudo nvidia-smi -pm 1")
            if slow
            else ok("gpus", finding)
        )

    def _gpm(self) -> Ability:
        name = "gpu units (GPM)"
        if self._refused:
            call = next(iter(self._refused.values()))
            return limited(name, call.reason, call.advice)
        if self._monitored:
            return ok(name, "work, waiting and idling are distinguished by tensor, DRAM and SM activity")
        if any(gpu.gpm for gpu in self.gpus.values()):
            return limited(name, "the cards have it and report nothing", "dcgmi profile --pause, if DCGM runs here")
        return limited(
            name, "these cards have none (Hopper and newer do): power and utilisation must do, with less certainty"
        )


def examine_binding(
    filesystem: Filesystem, process: r.Process, gpus: Mapping[str, r.Gpu], contexts: Sequence[r.GpuProcess]
) -> list[Ability]:
    """Which cards a process uses; nothing on a machine without any."""
    if not gpus:
        return []
    try:
        files = device_files(filesystem, process.pid)
    except Unavailable:
        files = None
    complete = bool(contexts) and sees_host_pids(filesystem)
    found = bind(process, list(gpus.values()), contexts, files, complete)
    if found.cuda is False:
        return [ok("gpu of the process", "CUDA is not in use: judged as a job on CPUs")]
    if not found.uuids:
        return [limited("gpu of the process", "it cannot be known which card is its own: all are judged",
                       "run perfwatch on the host or in the job's container, as its user")]  # fmt: skip
    numbers = ", ".join(str(gpus[uuid].index) for uuid in found.uuids)
    return [ok("gpu of the process", f"gpu {numbers}: {HOW[found.how]}")]
