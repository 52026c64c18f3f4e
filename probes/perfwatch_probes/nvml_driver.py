"""The real NVML, through nvidia-ml-py. Import and use it only where a call may block for ever: see ``nvml_sampler``.

nvidia-ml-py (module ``pynvml``) is imported by ``start``: 20 ms and 8 MB that only the sampler's process pays.
"""

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfwatch_probes.nvml_layer import FUNCTION_NOT_FOUND, LIBRARY_NOT_FOUND, TIMEOUT, Happened, Listed, Refused

_XID_EVENTS = 0x8  # nvmlEventTypeXidCriticalError
_PROCESS_CALLS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_PROCESS_VERSIONS = ("_v3", "_v2")  # drivers before 510 know only the second
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class DriverNvml:
    """See ``perfwatch_probes.nvml_layer.Nvml``.

    Args:
        library: the module ``pynvml``; imported when it is needed, by default.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._calls: dict[str, Callable[..., Any]] = {}

    def start(self) -> None:
        """Import nvidia-ml-py, load libnvidia-ml.so.1, connect."""
        if self._library is None:
            try:
                import pynvml  # type: ignore[import-untyped]
            except ImportError:
                raise Refused(LIBRARY_NOT_FOUND, "nvidia-ml-py is not installed") from None
            self._library = pynvml
        self._ask("nvmlInit")

    def card(self, index: int) -> Any:
        """See the protocol."""
        return self._ask("nvmlDeviceGetHandleByIndex", index)

    def mig_device(self, card: Any, index: int) -> Any:
        """See the protocol."""
        return self._ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index)

    def number(self, call: str, *arguments: Any) -> int:
        """See the protocol."""
        return int(self._ask(call, *arguments))

    def numbers(self, call: str, *arguments: Any) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(int(one) for one in self._ask(call, *arguments))

    def text(self, call: str, *arguments: Any) -> str:
        """See the protocol."""
        return _text(self._ask(call, *arguments))

    def record(self, call: str, *arguments: Any) -> Mapping[str, Any]:
        """See the protocol."""
        answer = self._ask(call, *arguments)
        members = {name: getattr(answer, name) for name, *_ in answer._fields_}
        return {name: _text(value) if isinstance(value, bytes) else value for name, value in members.items()}

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[int | float | Refused]:
        """See the protocol."""
        answers = self._ask("nvmlDeviceGetFieldValues", handle, list(wanted))
        return [
            Refused(answer.nvmlReturn) if answer.nvmlReturn else getattr(answer.value, _VALUES[answer.valueType])
            for answer in answers
        ]

    def processes(self, handle: Any, kind: str) -> list[Listed]:
        """See the protocol."""
        for version in _PROCESS_VERSIONS:
            try:
                found = self._ask(_PROCESS_CALLS[kind] + version, handle)
            except Refused as refused:
                if refused.code != FUNCTION_NOT_FOUND:
                    raise
                continue
            return [Listed(one.pid, one.usedGpuMemory) for one in found]
        raise Refused(FUNCTION_NOT_FOUND, f"this driver does not list {kind} processes")

    def process_utilisation(self, handle: Any, since_microseconds: int) -> list[tuple[int, int, int]]:
        """See the protocol."""
        found = self._ask("nvmlDeviceGetProcessUtilization", handle, since_microseconds)
        return [(one.pid, one.timeStamp, one.smUtil) for one in found]

    def gpm_sample(self, handle: Any, into: Any, instance: int | None) -> Any:
        """See the protocol."""
        sample = self._ask("nvmlGpmSampleAlloc") if into is None else into
        if instance is None:
            self._ask("nvmlGpmSampleGet", handle, sample)
        else:
            self._ask("nvmlGpmMigSampleGet", handle, instance, sample)
        return sample

    def gpm_metrics(self, first: Any, second: Any, wanted: Sequence[int]) -> list[float | None]:
        """See the protocol."""
        question = self._library.c_nvmlGpmMetricsGet_t()
        question.version = self._library.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(wanted)
        question.sample1, question.sample2 = first, second
        for metric, identity in zip(question.metrics, wanted, strict=False):
            metric.metricId = identity
        self._ask("nvmlGpmMetricsGet", question)
        answers = [question.metrics[place] for place in range(len(wanted))]
        return [None if answer.nvmlReturn else answer.value for answer in answers]

    def watch_events(self, card: Any, before: Any) -> Any:
        """See the protocol."""
        if before is not None:
            with contextlib.suppress(Refused):
                self._ask("nvmlEventSetFree", before)
        offered = self.number("nvmlDeviceGetSupportedEventTypes", card)
        events = self._ask("nvmlEventSetCreate")
        try:
            self._ask("nvmlDeviceRegisterEvents", card, _XID_EVENTS & offered, events)
        except Refused:
            self._ask("nvmlEventSetFree", events)
            raise
        return events

    def next_event(self, events: Any) -> Happened | None:
        """See the protocol."""
        try:
            found = self._ask("nvmlEventSetWait_v2", events, 0)
            return Happened(int(found.eventType), int(found.eventData))
        except Refused as refused:
            if refused.code == TIMEOUT:
                return None
            raise

    def _ask(self, call: str, *arguments: Any) -> Any:
        function = self._calls.get(call)
        if function is None:
            function = getattr(self._library, call, None)
            if function is None:
                raise Refused(FUNCTION_NOT_FOUND, f"nvidia-ml-py has no {call}")
            self._calls[call] = function
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            raise Refused(int(error.value), str(error)) from None
        except (
            ctypes.ArgumentError,
            self._library.NVMLLibraryMismatchError,
        ) as error:  # binding and driver are of unlike age
            raise Refused(FUNCTION_NOT_FOUND, f"{call}: {error}") from None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
