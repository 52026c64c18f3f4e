"""Whose the cards are: which a process uses, which are lost, what they are called, and which processes share one."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from perfwatch.triage.history import History, Seen
from perfwatch.triage.shares.thresholds import LATELY_SECONDS
from perfwatch_probes import readings as r

USES = 0.05  # of the card: a context that does nothing takes memory, not time
UNLISTED_SECONDS = 10.0  # a process that was not listed for so long is not there any more


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
    if seen.reading.cuda is False if seen is not None else history.entities(r.GpuBinding):
        return Cards()
    if seen is not None and (uuids := seen.reading.uuids or seen.reading.visible):
        # Not the whole of a card where a part of it (MIG) is listed too: a process on a part can use nothing else of it.
        wholes = {whole for one in uuids for whole in with_wholes(history, (one,)) if whole != one}
        return Cards(tuple(uuid for uuid in uuids if uuid not in wholes), seen.reading.how)
    read = {key[0] for kind in (r.Gpu, r.GpuSample, r.GpuActivity) for key in history.entities(kind)}
    read = {uuid for uuid in read if not _answered_since(history, uuid)}
    return Cards(tuple(sorted(read)), "device" if read else "")


def _answered_since(history: History, uuid: str) -> bool:
    """True if this stood for a card that the driver could not even name, which has answered under its own name since."""
    seen = history.latest(r.Gpu, uuid)
    if seen is None or seen.reading.name:
        return False
    for (other,) in history.entities(r.Gpu):
        card, sample = history.latest(r.Gpu, other), history.latest(r.GpuSample, other)
        if card is not None and card.reading.name and card.reading.index == seen.reading.index:
            if max(card.at, sample.at if sample is not None else 0.0) >= seen.at:
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


@dataclass(frozen=True)
class Neighbour:
    """A process on a card that is not of the job. ``share``: of the card's time; None if not measured."""

    pid: int
    share: float | None
    memory_bytes: int | None


def neighbours(history: History, uuid: str) -> tuple[Neighbour, ...]:
    """Processes on a card that are known not to be the job's, the busiest first.

    In a container the driver's pids may say nothing: of those that cannot be matched, as many as the job has processes on
    this card may be its own. Of a job that uses MPS, the one other process that is no client is the server. If there are several,
    one of them is, and what each of them takes is not known.
    """
    servers = mps_servers(history, uuid)
    strangers = [one for one in _strangers(history, uuid) if (one.pid,) != servers]
    shares = (None if one.pid in servers else _share(history, uuid, one) for one in strangers)
    found = (Neighbour(one.pid, share, one.memory_bytes) for one, share in zip(strangers, shares, strict=True))
    return tuple(sorted(found, key=lambda one: -(one.share or 0.0)))


def unused(history: History, uuid: str) -> bool:
    """True if the job has a context on a card and computes nothing there: all its processes are listed, and none was busy.

    A program that trains on the CPU has one as soon as a library asks for the card (measured: torch's compiler, 0.5 GiB).
    """
    living, job = _living(history, uuid), _job(history)
    own = [one for one in living if one.local_pid in job]
    if not own or len(own) < len(_bound(history, uuid)) or any(one.kind == "mps" for one in own):
        return False
    return all(_share(history, uuid, one) == 0.0 for one in own)


def is_free(history: History, uuid: str, ranks: Collection[int] = ()) -> bool:
    """True if no process is listed on a card but these ranks, and they take none of its time."""
    return all(one.local_pid in ranks and (_share(history, uuid, one) or 0.0) < USES for one in _living(history, uuid))


def share_of(history: History, uuid: str, pid: int) -> float | None:
    """The share of a card's time that a process of the job takes; None where that is not measured, or it is not there."""
    return next((_share(history, uuid, one) for one in _living(history, uuid) if one.local_pid == pid), None)


def mps_servers(history: History, uuid: str) -> tuple[int, ...]:
    """Processes that may be the MPS server of the job on a card: not of the job, and the work of its clients may be booked to it.

    The driver lists clients as such, and their server as any other process.
    """
    job = _job(history)
    clients = any(
        one.kind == "mps" and (one.local_pid is None or one.local_pid in job) for one in _living(history, uuid)
    )
    return tuple(one.pid for one in _strangers(history, uuid) if clients and one.kind == "compute")


def _strangers(history: History, uuid: str) -> list[r.GpuProcess]:
    living, job = _living(history, uuid), _job(history)
    matched = {one.local_pid for one in living if one.local_pid in job}
    foreign = [one for one in living if one.local_pid is not None and one.local_pid not in job]
    unknown = [one for one in living if one.local_pid is None]
    unmatched = [pid for pid in _bound(history, uuid) if pid not in matched]
    unknown.sort(key=lambda one: -(one.memory_bytes or 0))
    return foreign + unknown[len(unmatched) :]


def _living(history: History, uuid: str) -> list[r.GpuProcess]:
    listed = (history.latest(r.GpuProcess, *key) for key in history.of(r.GpuProcess, uuid))
    now = (one.reading for one in listed if one is not None and history.at - one.at <= UNLISTED_SECONDS)
    return [one for one in now if not one.gone and one.kind != "graphics"]


def _job(history: History) -> frozenset[int]:
    return frozenset(pid for (pid,) in history.entities(r.Process))


def shared(history: History, uuid: str) -> bool:
    """True if another job's work on the card cannot be excluded: what the card does then says nothing about this job."""
    return any(one.share is None or one.share >= USES for one in neighbours(history, uuid))


def _bound(history: History, uuid: str) -> list[int]:
    """Processes of the job that use this card."""
    bound = (history.latest(r.GpuBinding, pid) for (pid,) in history.entities(r.GpuBinding))
    seen = (one.reading for one in bound if one is not None)
    return [one.pid for one in seen if one.cuda is not False and uuid in one.uuids]


def _share(history: History, uuid: str, process: r.GpuProcess) -> float | None:
    """Mean over the window. In a second in which another process was measured and this one was not, it did nothing.

    Of an MPS client that was never measured nothing is known: its work may be booked to the server.
    """
    looks = history.series(r.GpuProcess, uuid, process.pid, seconds=LATELY_SECONDS)
    if process.kind == "mps" and all(one.reading.sm_utilisation is None for one in looks):
        return None
    of_card = [
        one
        for key in history.of(r.GpuProcess, uuid)
        for one in history.series(r.GpuProcess, *key, seconds=LATELY_SECONDS)
    ]
    measured = {round(one.at, 1) for one in of_card if one.reading.sm_utilisation is not None}
    known = ((round(one.at, 1) in measured, one.reading.sm_utilisation) for one in looks)
    return mean(0.0 if share is None and others else share for others, share in known)


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None for none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
