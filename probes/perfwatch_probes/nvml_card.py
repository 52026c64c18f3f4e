"""One card under observation: its samples, its errors, its processes.

What is asked how often follows from what it costs (H200, driver 580, in a virtual machine): most calls take 3 to 12 us, but some
go to the card's own processor: use by processes 1,800, thermal violation 530 to 750, PCIe counters 110 to 160 each, BAR1 130 to 180 us.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from perfwatch_probes.nvml_asking import Asking
from perfwatch_probes.nvml_counters import Unwrapped, most_pcie_bytes
from perfwatch_probes.nvml_description import MOST_LINKS, link_states
from perfwatch_probes.nvml_layer import ALL_LINKS, UNREACHABLE, Handle, Listed, Nvml, Refused, ToLocal
from perfwatch_probes.readings import Gpu, GpuErrors, GpuProcess, GpuSample

# NVML_FI_DEV_*, asked for in one call each.
_FAST_FIELDS = {"power": (186, 0)}
_SLOW_FIELDS = {"power_violation_ns": (74, 0), "memory_temperature": (82, 0)}
_RARE_FIELDS = {"thermal_violation_ns": (75, 0), "pcie_replays": (94, 0)}
_TRAFFIC_FIELDS = {  # GPM tells the same; a card without it is asked each second
    "pcie_sent_bytes": (197, 0),
    "pcie_received_bytes": (198, 0),
    "nvlink_sent_kib": (138, ALL_LINKS),
    "nvlink_received_kib": (139, ALL_LINKS),
}
_ERROR_FIELDS = {"corrected": (3, 0), "uncorrected": (4, 0)}
# Replay, recovery and CRC errors are told link by link: their scope is a link's number (NVML API Reference, "Change Log"; a sum over
# all links is documented of the traffic only). Each takes 840 us, all of 18 links 45 ms (two H100): two links are asked at a time.
_LINK_ERRORS = (161, 162, 163)
_LINKS_AT_ONCE = 2
_PCIE_BYTES = ("pcie_sent_bytes", "pcie_received_bytes")
_SM_CLOCK, _MEMORY_CLOCK, _TEMPERATURE_SENSOR = 1, 2, 0
USED_SECONDS = 1.5  # samples of the use by processes that are older tell of the past
_KINDS = ("compute", "graphics", "mps")


class Card:
    """Asks one card (or MIG device) for readings.

    Args:
        nvml: whom to ask.
        handle: the card.
        described: what it is.
        to_local: the pid in our namespace of a process that NVML lists, or None.
        wall: unix time, seconds; the driver stamps what processes use with it.

    Attributes:
        refusal: with what a card that has answered before refused everything in the last look, if it did.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Handle,
        described: Gpu,
        to_local: ToLocal = lambda pid, minor: pid,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.gpu = described
        self._ask = Asking(nvml, handle)
        self._unwrapped = Unwrapped()
        self._to_local, self._wall = to_local, wall
        self._state: dict[str, Any] = {}  # what changes slowly, as last read
        self._errors: GpuErrors | None = None
        self._link_errors: dict[str, int] = {}  # as last told, by field and link
        self._next_link = 0
        self._processes: dict[int, GpuProcess] = {}
        self._used_until = 0
        self.refusal: Refused | None = None

    def sample(self, now: float, slow: bool = False, rare: bool = False, full: bool = False) -> GpuSample:
        """How the card stands now.

        Args:
            now: CLOCK_MONOTONIC, seconds.
            full: ask for the memory in use, which an allocator in trouble takes and gives back several times a second.
            slow: ask also for what changes within seconds.
            rare: ask also for what is expensive.

        What was not asked for keeps its last value; a counter is None then, for a repeated one would look like no growth.
        Raises Refused when the card is lost.
        """
        ask, heard = self._ask, self._ask.heard
        ask.refusal = None
        power = ask.fields(_FAST_FIELDS).get("power") or ask.number("nvmlDeviceGetPowerUsage")
        used = ask.record("nvmlDeviceGetUtilizationRates")
        reasons = ask.number("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = ask.number("nvmlDeviceGetCurrentClocksThrottleReasons")
        if full or slow:
            self._state["memory_used_bytes"] = ask.record("nvmlDeviceGetMemoryInfo").get("used")
        counters = {**(self._slow() if slow else {}), **(self._rare() if rare else {})}
        sample = GpuSample(
            uuid=self.gpu.uuid,
            utilisation=_share(used.get("gpu")),
            memory_utilisation=_share(used.get("memory")),
            power_watts=None if power is None else power / 1000,
            sm_clock_mhz=ask.number("nvmlDeviceGetClockInfo", _SM_CLOCK),
            reasons=reasons,
            **self._state,
            **{name: self._counted(name, int(value), now) for name, value in counters.items()},
        )
        whole = self.gpu.parent_uuid is None  # of a part a driver may tell nothing
        self.refusal = ask.refusal if whole and heard and ask.heard == heard else None
        return sample

    def answer(self, now: float) -> None:
        """Raises Refused when the card refuses everything: it describes itself from what the driver remembers."""
        self.sample(now, slow=True)
        if self._ask.refusal is not None and not self._ask.heard:
            raise self._ask.refusal

    def errors(self) -> GpuErrors | None:
        """Error counters, when they differ from the last time."""
        ask, due = self._ask, self._links_due()
        fields = ask.fields(_ERROR_FIELDS | due)
        rows = ask.numbers("nvmlDeviceGetRemappedRows")
        self._link_errors |= {name: int(fields[name]) for name in due if name in fields}
        found = GpuErrors(
            uuid=self.gpu.uuid,
            corrected=_whole(fields.get("corrected")),
            uncorrected=_whole(fields.get("uncorrected")),
            remapped_rows_corrected=rows[0] if rows else None,
            remapped_rows_uncorrected=rows[1] if rows else None,
            remap_pending=bool(rows[2]) if rows else None,
            remap_failed=bool(rows[3]) if rows else None,
            nvlink_errors=sum(self._link_errors.values()) if self._link_errors else None,
        )
        if found == self._errors:
            return None
        self._errors = found
        return found

    def _links_due(self) -> dict[str, tuple[int, int]]:
        """The error fields of the links whose turn it is; of all at first."""
        if not self.gpu.nvlinks:
            return {}
        first, self._next_link = self._next_link, (self._next_link + _LINKS_AT_ONCE) % MOST_LINKS
        links = range(first, first + _LINKS_AT_ONCE) if self._link_errors else range(MOST_LINKS)
        return {
            f"{field} of link {link}": (field, link) for field in _LINK_ERRORS for link in links if link < MOST_LINKS
        }

    def processes(self) -> list[GpuProcess]:
        """Who has a context on the card, and who no longer has one. Raises Refused when it is lost.

        How much each of them uses the card is asked where there are several: that call takes 1,800 us.
        """
        listed: dict[int, tuple[str, Listed]] = {}
        for kind in _KINDS:
            for one in self._listed(kind):
                listed.setdefault(one.pid, (kind, one))
        shares = self._shares() if len(listed) > 1 else {}
        found = {
            pid: GpuProcess(
                uuid=self.gpu.uuid,
                pid=pid,
                local_pid=self._to_local(pid, self.gpu.minor),
                kind=kind,
                memory_bytes=one.memory_bytes,
                sm_utilisation=shares.get(pid),
            )
            for pid, (kind, one) in listed.items()
        }
        gone = [
            GpuProcess(uuid=self.gpu.uuid, pid=pid, local_pid=before.local_pid, kind=before.kind, gone=True)
            for pid, before in self._processes.items()
            if pid not in found
        ]
        self._processes = found
        return [*gone, *found.values()]

    def _counted(self, name: str, value: int, now: float) -> int | None:
        link = self.gpu.pcie_generation_max, self.gpu.pcie_width_max
        return self._unwrapped.value(name, value, now, most_pcie_bytes(*link) if name in _PCIE_BYTES else None)

    def _slow(self) -> dict[str, int | float]:
        ask = self._ask
        fields = ask.fields(_SLOW_FIELDS if self.gpu.gpm else _SLOW_FIELDS | _TRAFFIC_FIELDS)
        self._state |= {
            "temperature_celsius": ask.number("nvmlDeviceGetTemperature", _TEMPERATURE_SENSOR),
            "memory_temperature_celsius": _whole(fields.pop("memory_temperature", None)) or None,  # 0: no sensor
            "memory_clock_mhz": ask.number("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
        }
        return fields

    def _rare(self) -> dict[str, int | float]:
        ask = self._ask
        links = link_states(ask) if self.gpu.nvlinks else []
        self._state |= {
            "encoder_utilisation": _share(ask.first("nvmlDeviceGetEncoderUtilization")),
            "decoder_utilisation": _share(ask.first("nvmlDeviceGetDecoderUtilization")),
            "jpeg_utilisation": _share(ask.first("nvmlDeviceGetJpgUtilization")),
            "optical_flow_utilisation": _share(ask.first("nvmlDeviceGetOfaUtilization")),
            "bar1_used_bytes": ask.record("nvmlDeviceGetBAR1MemoryInfo").get("bar1Used"),
            "protected_used_bytes": ask.record("nvmlDeviceGetConfComputeProtectedMemoryUsage").get("used"),
            "pcie_generation": ask.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": ask.number("nvmlDeviceGetCurrPcieLinkWidth"),
            "nvlinks_active": sum(links) if links else None,
        }
        return ask.fields(_RARE_FIELDS | _TRAFFIC_FIELDS if self.gpu.gpm else _RARE_FIELDS)

    def _listed(self, kind: str) -> Iterable[Listed]:
        try:
            return self._ask.nvml.processes(self._ask.handle, kind)
        except Refused as refused:
            return _or_nothing(refused)

    def _shares(self) -> dict[int, float]:
        """Each process' share of SM time since the last look; the newest sample of each counts.

        The driver keeps samples for a while: what a process did before it fell idle is not what it does.
        """
        since = max(self._used_until, int((self._wall() - USED_SECONDS) * 1e6))
        try:
            found = self._ask.nvml.process_utilisation(self._ask.handle, since)
        except Refused as refused:
            _or_nothing(refused)
            return {}
        self._used_until = max([since, *(at for _, at, _ in found)])
        newest = sorted(found, key=lambda one: one[1])
        return {pid: percent / 100 for pid, _, percent in newest if percent <= 100}


def _or_nothing(refused: Refused) -> list[Any]:
    if refused.code in UNREACHABLE:
        raise refused
    return []


def _share(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
