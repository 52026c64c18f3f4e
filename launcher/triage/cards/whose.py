"""Which cards a rank uses, which are lost, and what they are called."""

from collections.abc import Collection
from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.history import History, Seen


@dataclass(frozen=True)
class Cards:
    """The cards of one process. ``how``: as in GpuBinding, or ``device``: whose they are is not known, so all are judged."""

    uuids: tuple[str, ...] = ()
    how: str = ""

    @property
    def certain(self) -> bool:
        """Whether the process is known to use them."""
        return self.how in ("nvml", "device_files")


def cards_of(history: History, pid: int) -> Cards:
    """The cards of a process; where nobody could tell, all that were read, as ``device``; none for a process without CUDA."""
    seen = history.latest(r.GpuBinding, pid)
    if seen is None and history.entities(r.GpuBinding):
        return Cards()
    if seen is not None and seen.reading.cuda is False:
        return Cards()
    if seen is not None and (seen.reading.uuids or seen.reading.visible):
        return Cards(seen.reading.uuids or seen.reading.visible, seen.reading.how)
    read = {key[0] for kind in (r.Gpu, r.GpuSample, r.GpuActivity) for key in history.entities(kind)}
    return Cards(tuple(sorted(read)), "device" if read else "")


def with_wholes(history: History, uuids: Collection[str]) -> frozenset[str]:
    """These, and the cards that those of them which are slices (MIG) are parts of."""
    described = (history.latest(r.Gpu, uuid) for uuid in uuids)
    wholes = {one.reading.parent_uuid for one in described if one is not None and one.reading.parent_uuid}
    return frozenset(uuids) | wholes


def lost_cards(history: History) -> list[Seen[r.Gpu]]:
    """Cards that the driver no longer reaches."""
    known = (history.latest(r.Gpu, *key) for key in history.entities(r.Gpu))
    return [seen for seen in known if seen is not None and seen.reading.lost]


def index_of(history: History, uuid: str) -> int | None:
    """The card's number as nvidia-smi counts, None when it was not described."""
    seen = history.latest(r.Gpu, uuid)
    return seen.reading.index if seen is not None else None


def name_of(history: History, uuid: str) -> str:
    """``gpu 0``, or the identifier where the number is not known."""
    index = index_of(history, uuid)
    return uuid if index is None else f"gpu {index}"
