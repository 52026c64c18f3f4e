"""GPM: what a card's units did between two looks at its counters. Hopper and newer.

The counters are refreshed every 100 ms (measured on H200). Two looks within one refresh give all zeros, and that is no
news, not an idle card: the earlier look is then kept, and the next one spans more than a refresh.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from perfwatch_probes.nvml_layer import Handle, Nvml
from perfwatch_probes.nvml_metrics import scale
from perfwatch_probes.readings import GpuActivity

REFRESH_SECONDS = 0.1
SHORTEST_SECONDS = 0.09  # closer looks are not compared
CALM_SECONDS = 1.0  # from look to look; one costs 50 us and comparing two 1,600 us (H200, virtual machine)
ZERO_SECONDS = 2.5 * REFRESH_SECONDS  # all zero over less may be a missed refresh; over more it is an idle card

# NVML_GPM_METRIC_*; shares come in percent, traffic in MiB/s. "TX" is from the card to the host.
_SHARES = {
    "graphics": 1, "sm_active": 2, "sm_occupancy": 3, "integer": 4, "tensor": 5, "hmma": 7, "dmma": 8, "imma": 9,
    "dram": 10, "fp64": 11, "fp32": 12, "fp16": 13,
}  # fmt: skip
_TRAFFIC = {
    "pcie_sent_mib_per_second": 20,
    "pcie_received_mib_per_second": 21,
    "nvlink_received_mib_per_second": 60,
    "nvlink_sent_mib_per_second": 61,
    "c2c_sent_mib_per_second": 100,
    "c2c_received_mib_per_second": 101,
}
_NAMES = (*_SHARES, *_TRAFFIC)
_IDENTITIES = (*_SHARES.values(), *_TRAFFIC.values())
NO_MORE: Mapping[str, int] = MappingProxyType({})
_DECIMALS = 5  # of a share: 0.001 %


class Gpm:
    """The GPM counters of one card or MIG device.

    Args:
        nvml: whom to ask.
        handle: the card (of a MIG device: its parent).
        uuid: for the readings.
        instance: GPU instance of a MIG device.
        others: further metrics, by name (see ``nvml_metrics``); each makes the comparison dearer.

    Attributes:
        due: when the next look is worth it, while calm.
        refused: another program holds the counters.
    """

    def __init__(
        self, nvml: Nvml, handle: Handle, uuid: str, instance: int | None = None, others: Mapping[str, int] = NO_MORE
    ) -> None:
        self._nvml, self._handle, self._uuid, self._instance = nvml, handle, uuid, instance
        self._others = others
        self._base: Any = None
        self._base_at = 0.0
        self._spare: Any = None
        self.due = 0.0
        self.refused = False

    def look(self, now: float) -> GpuActivity | None:
        """What happened since the last reading; None when nothing new can be said yet. Raises Refused."""
        if self._base is not None and now - self._base_at < SHORTEST_SECONDS:
            return None
        fresh = self._nvml.gpm_sample(self._handle, self._spare, self._instance)
        self._spare = None
        if self._base is None:
            self._base, self._base_at = fresh, now
            return None
        try:
            answers = self._nvml.gpm_metrics(self._base, fresh, (*_IDENTITIES, *self._others.values()))
        except BaseException:
            self._spare = fresh
            raise
        told = {
            name: None if _no_number(value) else value
            for name, value in zip((*_NAMES, *self._others), answers, strict=True)
        }
        values = {name: told[name] for name in _NAMES}
        seconds = now - self._base_at
        torn = any(map(_no_number, answers))  # seen when a context has just ended: all zero, and 0/0 for the memory
        if not any(values.values()) and (torn or seconds < ZERO_SECONDS):
            self._spare = fresh
            return None
        self._spare, self._base, self._base_at = self._base, fresh, now
        if all(value is None for value in values.values()):
            return None
        return GpuActivity(
            uuid=self._uuid,
            interval_seconds=round(seconds, 4),
            **{name: _rounded(values[name], 0.01) for name in _SHARES},
            **{name: _rounded(values[name], 1.0) for name in _TRAFFIC},
            others={
                name: round(value * scale(name), _DECIMALS)
                for name in self._others
                if (value := told[name]) is not None
            },
        )


def _rounded(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value * scale, _DECIMALS)


def _no_number(value: float | None) -> bool:
    return value is not None and math.isnan(value)
