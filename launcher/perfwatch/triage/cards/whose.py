"""Which cards a rank uses, which are lost, and what they are called."""

from collections.abc import Collection
from dataclasses import dataclass

from perfwatch.triage.history import History, Seen
from perfwatch_probes import readings as r


@dataclass(frozen=True)
class Cards:
    """The cards of one process. ``how``: as in GpuBinding, or ``device``: the process that uses them is not known, so all are judged."""

    uuids: tuple[str, ...] = ()
    how: str = ""

    @property
    def certain(self) -> bool:
        """True if the process is known to use them."""
        return self.how in ("nvml", "device_files")

    @property
    def guessed(self) -> bool:
        """True if nothing tells which of them it uses, or how many: these are all that it might."""
        return self.how in ("", "device")


def cards_of(history: History, pid: int) -> Cards:
    """The cards of a process; if that is not known, all that were read, as ``device``; none for a process without CUDA."""
    seen = history.latest(r.GpuBinding, pid)
    if seen is None and history.entities(r.GpuBinding):
        return Cards()
    if seen is not None and seen.reading.cuda is False:
        return Cards()
    if seen is not None and (seen.reading.uuids or seen.reading.visible):
        return Cards(_parts(history, seen.reading.uuids or seen.reading.visible), seen.reading.how)
    read = {key[0] for kind in (r.Gpu, r.GpuSample, r.GpuActivity) for key in history.entities(kind)}
    read = {uuid for uuid in read if not _answered_since(history, uuid)}
    return Cards(tuple(sorted(read)), "device" if read else "")


def _parts(history: History, uuids: tuple[str, ...]) -> tuple[str, ...]:
    """Without the whole of a card where a part of it (MIG) is listed too: a process on a part can use nothing else of it."""
    wholes = {uuid for one in uuids for uuid in with_wholes(history, (one,)) if uuid != one}
    return tuple(uuid for uuid in uuids if uuid not in wholes)


def _answered_since(history: History, uuid: str) -> bool:
    """True if this stood for a card that the driver could not even name, which has answered under its own name since."""
    seen = history.latest(r.Gpu, uuid)
    if seen is None or seen.reading.name:
        return False
    for (other,) in history.entities(r.Gpu):
        named = history.latest(r.Gpu, other)
        if named is None or not named.reading.name or named.reading.index != seen.reading.index:
            continue
        sample = history.latest(r.GpuSample, other)
        if max(named.at, sample.at if sample is not None else 0.0) >= seen.at:
            return True
    return False


def with_wholes(history: History, uuids: Collection[str]) -> frozenset[str]:
    """These, and the cards that those of them which are slices (MIG) are parts of."""
    described = (history.latest(r.Gpu, uuid) for uuid in uuids)
    wholes = {one.reading.parent_uuid for one in described if one is not None and one.reading.parent_uuid}
    return frozenset(uuids) | wholes


def lost_cards(history: History) -> list[Seen[r.Gpu]]:
    """Cards that the driver no longer reaches."""
    known = (history.latest(r.Gpu, *key) for key in history.entities(r.Gpu))
    lost = [seen for seen in known if seen is not None and seen.reading.lost]
    return [seen for seen in lost if not _answered_since(history, seen.reading.uuid)]


def index_of(history: History, uuid: str) -> int | None:
    """The card's number as nvidia-smi counts, None if it was not described."""
    seen = history.latest(r.Gpu, uuid)
    return seen.reading.index if seen is not None else None


def name_of(history: History, uuid: str) -> str:
    """``gpu 0``, or the identifier where the number is not known."""
    index = index_of(history, uuid)
    return uuid if index is None else f"gpu {index}"
