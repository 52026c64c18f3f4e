"""The layer over nvidia-ml-py: its structures become plain data, its errors refusals. The library itself is a stand-in."""

from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml  # type: ignore[import-untyped]
import pytest

from perfwatch_probes.nvml_driver import DriverNvml
from perfwatch_probes.nvml_layer import FUNCTION_NOT_FOUND, LOST, NOT_SUPPORTED, TIMEOUT, Happened, Listed, Refused


def driver(**calls: Any) -> DriverNvml:
    """A library with these calls, and the real one's types and errors."""
    library = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        NVMLLibraryMismatchError=pynvml.NVMLLibraryMismatchError,
        c_nvmlGpmMetricsGet_t=pynvml.c_nvmlGpmMetricsGet_t,
        NVML_GPM_METRICS_GET_VERSION=pynvml.NVML_GPM_METRICS_GET_VERSION,
        nvmlInit=lambda: None,
        **calls,
    )
    made = DriverNvml(library)
    made.start()
    return made


def failing(error: Exception) -> Any:
    """A call that fails."""

    def call(*arguments: Any) -> NoReturn:
        raise error

    return call


@pytest.mark.parametrize("code", [NOT_SUPPORTED, LOST, 999])
def test_an_error_of_the_library_is_a_refusal_with_its_code(code: int) -> None:
    """And the driver's words."""
    nvml = driver(nvmlDeviceGetPowerUsage=failing(pynvml.NVMLError(code)))

    with pytest.raises(Refused) as refused:
        nvml.number("nvmlDeviceGetPowerUsage", object())
    assert refused.value.code == code
    assert refused.value.text


def test_a_call_that_the_binding_or_the_driver_does_not_know_is_a_refusal() -> None:
    """One of them is older than the other."""
    nvml = driver(nvmlDeviceGetName=failing(pynvml.NVMLLibraryMismatchError("too old")))

    for call in ("nvmlDeviceGetName", "nvmlDeviceGetSomethingNew"):
        with pytest.raises(Refused) as refused:
            nvml.text(call, object())
        assert refused.value.code == FUNCTION_NOT_FOUND


def test_a_structure_becomes_its_members() -> None:
    """Bytes become text."""
    pci = pynvml.nvmlPciInfo_t()
    pci.busId, pci.device = b"00000000:06:00.0", 6
    nvml = driver(nvmlDeviceGetPciInfo_v3=lambda handle: pci)

    found = nvml.record("nvmlDeviceGetPciInfo_v3", object())

    assert (found["busId"], found["device"]) == ("00000000:06:00.0", 6)


def test_field_values_have_the_type_that_the_driver_says() -> None:
    """Or the reason why there is none."""

    def fields(handle: object, wanted: list[tuple[int, int]]) -> Any:
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        values[0].valueType, values[0].value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 648_000
        values[1].valueType, values[1].value.dVal = pynvml.NVML_VALUE_TYPE_DOUBLE, 0.5
        values[2].valueType, values[2].value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 2**40
        values[3].nvmlReturn = NOT_SUPPORTED
        return values

    first, second, third, fourth = driver(nvmlDeviceGetFieldValues=fields).fields(object(), [(1, 0)] * 4)

    assert (first, second, third) == (648_000, 0.5, 2**40)
    assert isinstance(fourth, Refused)
    assert fourth.code == NOT_SUPPORTED


def test_an_older_driver_lists_processes_by_its_older_call() -> None:
    """Before 510."""
    nvml = driver(
        nvmlDeviceGetComputeRunningProcesses_v3=failing(pynvml.NVMLError(FUNCTION_NOT_FOUND)),
        nvmlDeviceGetComputeRunningProcesses_v2=lambda handle: [SimpleNamespace(pid=41, usedGpuMemory=None)],
    )

    assert nvml.processes(object(), "compute") == [Listed(41, None)]
    with pytest.raises(Refused):
        nvml.processes(object(), "mps")


def test_units_that_a_card_lacks_are_none() -> None:
    """Each metric has an answer of its own."""

    def compare(question: Any) -> None:
        assert question.numMetrics == 2
        question.metrics[0].value = 92.5
        question.metrics[1].nvmlReturn = NOT_SUPPORTED

    nvml = driver(nvmlGpmMetricsGet=compare)

    assert nvml.gpm_metrics(None, None, (5, 60)) == [92.5, None]


def test_events_are_told_by_a_card_that_is_lost_and_none_is_no_error() -> None:
    """It is not asked who it is; a time-out is how the driver says that nothing happened."""
    happened = SimpleNamespace(device="card", eventType=8, eventData=79)
    lost = failing(pynvml.NVMLError(LOST))
    nvml = driver(nvmlEventSetWait_v2=lambda events, timeout: happened, nvmlDeviceGetUUID=lost)
    quiet = driver(nvmlEventSetWait_v2=failing(pynvml.NVMLError(TIMEOUT)))

    assert nvml.next_event(object()) == Happened(8, 79)
    assert quiet.next_event(object()) is None


def test_a_set_of_events_is_given_back_when_its_card_is_watched_anew_or_has_none() -> None:
    """What the driver holds for it must not grow while a card comes and goes."""
    registered: list[tuple[object, int, object]] = []
    held: list[int] = []

    def create() -> int:
        held.append(len(registered) + 1)
        return held[-1]

    def register(card: object, kinds: int, events: object) -> None:
        if card == "lost":
            raise pynvml.NVMLError(LOST)
        registered.append((card, kinds, events))

    nvml = driver(
        nvmlEventSetCreate=create,
        nvmlEventSetFree=held.remove,
        nvmlDeviceGetSupportedEventTypes=lambda card: 0x19,
        nvmlDeviceRegisterEvents=register,
    )
    first = nvml.watch_events("sound", None)
    with pytest.raises(Refused):
        nvml.watch_events("lost", None)
    second = nvml.watch_events("sound", first)

    assert registered == [("sound", 0x8, first), ("sound", 0x8, second)]
    assert held == [second]
