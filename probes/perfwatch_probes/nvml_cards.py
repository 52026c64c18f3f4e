"""A card and its MIG devices, ready to be asked: each is a card of its own, with units and processes of its own."""

import time
from collections.abc import Callable, Iterator, Mapping

from perfwatch_probes.nvml_asking import Asking
from perfwatch_probes.nvml_card import Card
from perfwatch_probes.nvml_description import describe
from perfwatch_probes.nvml_gpm import NO_MORE, Gpm
from perfwatch_probes.nvml_layer import UNREACHABLE, Handle, Nvml, Refused, ToLocal
from perfwatch_probes.readings import Gpu


def open_card(
    nvml: Nvml,
    index: int,
    driver_version: str,
    to_local: ToLocal,
    wall: Callable[[], float] = time.time,
    others: Mapping[str, int] = NO_MORE,
) -> list[tuple[Card, Gpm | None]]:
    """The card itself, then its MIG devices; with what reads their units, where they can be read.

    Args:
        nvml: whom to ask.
        index: of the card, in the order of the PCI bus.
        driver_version: for the description.
        to_local: the pid in our namespace of a process that NVML lists, or None.
        wall: unix time, seconds.
        others: further GPM metrics, by name.

    Raises Refused when the card cannot be reached.
    """
    handle = nvml.card(index)
    asking = Asking(nvml, handle)
    gpu = describe(asking, index, driver_version)
    # Of a card that is cut up its parts have them.
    units = Gpm(nvml, handle, gpu.uuid, others=others) if gpu.gpm and not gpu.mig else None
    whole = Card(nvml, handle, gpu, to_local, wall)
    places = (asking.number("nvmlDeviceGetMaxMigDeviceCount") or 0) if gpu.mig else 0
    parts = (_part(nvml, handle, part, gpu, to_local, wall, others) for part in _parts(nvml, handle, places))
    return [(whole, units), *parts]


def _parts(nvml: Nvml, handle: Handle, places: int) -> Iterator[Handle]:
    for place in range(places):
        try:
            yield nvml.mig_device(handle, place)
        except Refused as refused:
            if refused.code in UNREACHABLE:
                raise
            continue  # no device in this place


def _part(
    nvml: Nvml,
    handle: Handle,
    part: Handle,
    parent: Gpu,
    to_local: ToLocal,
    wall: Callable[[], float],
    others: Mapping[str, int],
) -> tuple[Card, Gpm | None]:
    asking = Asking(nvml, part)
    gpu = describe(asking, parent.index, parent.driver_version, parent)
    instance = asking.number("nvmlDeviceGetGpuInstanceId")
    units = Gpm(nvml, handle, gpu.uuid, instance, others) if gpu.gpm and instance is not None else None
    return Card(nvml, part, gpu, to_local, wall), units
