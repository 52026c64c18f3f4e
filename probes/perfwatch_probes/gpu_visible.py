"""Which cards CUDA_VISIBLE_DEVICES leaves to a process.

The rules are the CUDA driver's (CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Visible Devices"):
numbers or UUIDs, which may be cut short as long as they are unique; the list ends at the first entry that names no card, and one that
names a card twice names none. Numbers are read as strtoul does, to the first character that is no digit; torch counts so too.
"""

import re
from collections.abc import Mapping, Sequence

from perfwatch_probes.readings import Gpu

_NUMBER = re.compile(r"[+-]?[0-9]+")
_INSTANCE = (
    "mig-gpu-"  # MIG-GPU-<uuid>/<instance>/<instance>: how drivers before 470 named a part, and newer ones still take
)


def visible(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...] | None:
    """UUIDs in the order in which the process counts them; None when the numbers cannot be understood from here.

    Args:
        environment: of the process at its start.
        gpus: all cards and MIG devices of the machine.

    By default CUDA numbers cards by speed and not by PCI bus: on a machine with unlike cards a number is then no name.
    """
    unknown = [gpu.index for gpu in gpus if gpu.stand_in]
    gpus = _given(environment, [gpu for gpu in gpus if not gpu.stand_in])
    cards = sorted((gpu for gpu in gpus if gpu.parent_uuid is None), key=lambda gpu: gpu.index)
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in cards}) <= 1
    if listed is None:
        return _all(gpus) if by_bus else None
    found: list[str] = []
    for entry in (word.strip() for word in listed.split(",")):
        number = _NUMBER.match(entry)
        if number is not None:
            place = int(number[0])
            if not by_bus or any(index <= place for index in unknown):
                return None  # a lost card is counted by a process that began before it was lost
            match = _usable(cards[place], gpus) if 0 <= place < len(cards) else []
        else:
            match = [gpu.uuid for gpu in gpus if entry and gpu.uuid.lower().startswith(entry.lower())]
            if not match and entry.lower().startswith(_INSTANCE):
                return None  # no reading tells the instances of a part
        if len(match) != 1:
            break
        if match[0] in found:
            return ()
        found.append(match[0])
    parts = [gpu.uuid for gpu in gpus if gpu.parent_uuid is not None and gpu.uuid in found]
    return tuple(found) if not parts else (min(parts, key=found.index),)


def _given(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    """The cards that a container was given by UUID: inside, numbers count these alone. Given by number, they tell us nothing."""
    given = set(environment.get("NVIDIA_VISIBLE_DEVICES", "").split(","))
    return [gpu for gpu in gpus if gpu.uuid in given or gpu.parent_uuid in given] or gpus


def _usable(card: Gpu, gpus: Sequence[Gpu]) -> list[str]:
    """What CUDA takes for a card: itself, or where it is cut up its first part; nothing where it has none yet."""
    parts = [gpu.uuid for gpu in gpus if gpu.parent_uuid == card.uuid]
    return parts[:1] if parts or card.mig else [card.uuid]


def _all(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Every card; of one that is cut up, its first MIG device: CUDA gives a process no more than one of them."""
    parts = [gpu for gpu in gpus if gpu.parent_uuid is not None]
    if parts:
        return (parts[0].uuid,)
    return tuple(gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.index))
