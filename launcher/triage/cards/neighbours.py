"""Who else uses a card: processes that do not belong to the job."""

from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.cards.gpu import mean
from perfwatch.triage.history import History

USES = 0.05  # of the card: a context that does nothing takes memory, not time
WINDOW_SECONDS = 10.0
GONE_SECONDS = 10.0  # a process that was not listed for so long is not there any more


@dataclass(frozen=True)
class Neighbour:
    """A process on a card that is not of the job. ``share``: of the card's time; None where the driver does not tell."""

    pid: int
    share: float | None
    memory_bytes: int | None


def neighbours(history: History, uuid: str) -> tuple[Neighbour, ...]:
    """Processes on a card that are known not to be the job's, the busiest first.

    In a container the driver's pids may say nothing: of those that cannot be matched, as many as the job has processes on
    this card may be its own.
    """
    listed = [_now(history, uuid, pid) for (on, pid) in history.entities(r.GpuProcess) if on == uuid]
    living = [one for one in listed if one is not None and one.kind != "graphics"]
    job = {key[0] for key in history.entities(r.Process)}
    matched = {one.local_pid for one in living if one.local_pid in job}
    foreign = [one for one in living if one.local_pid is not None and one.local_pid not in job]
    unknown = [one for one in living if one.local_pid is None]
    unmatched = [pid for pid in _bound(history, uuid) if pid not in matched]
    unknown.sort(key=lambda one: -(one.memory_bytes or 0))
    strangers = foreign + unknown[len(unmatched) :]
    found = [Neighbour(one.pid, _share(history, uuid, one.pid), one.memory_bytes) for one in strangers]
    return tuple(sorted(found, key=lambda one: -(one.share or 0.0)))


def shared(history: History, uuid: str) -> bool:
    """Whether somebody else's work on the card cannot be excluded: what the card does says nothing about this job then."""
    return any(one.share is None or one.share >= USES for one in neighbours(history, uuid))


def _now(history: History, uuid: str, pid: int) -> r.GpuProcess | None:
    seen = history.latest(r.GpuProcess, uuid, pid)
    if seen is None or seen.reading.gone or history.at - seen.at > GONE_SECONDS:
        return None
    return seen.reading


def _bound(history: History, uuid: str) -> list[int]:
    """Processes of the job that use this card."""
    found = []
    for (pid,) in history.entities(r.GpuBinding):
        seen = history.latest(r.GpuBinding, pid)
        if seen is not None and seen.reading.cuda is not False and uuid in seen.reading.uuids:
            found.append(pid)
    return found


def _share(history: History, uuid: str, pid: int) -> float | None:
    """Mean over the window. In a second in which another process was measured and this one was not, it did nothing."""
    looks = history.series(r.GpuProcess, uuid, pid, seconds=WINDOW_SECONDS)
    measured = {
        round(one.at, 1)
        for key in history.entities(r.GpuProcess)
        if key[0] == uuid
        for one in history.series(r.GpuProcess, *key, seconds=WINDOW_SECONDS)
        if one.reading.sm_utilisation is not None
    }
    shares = [
        0.0 if one.reading.sm_utilisation is None and round(one.at, 1) in measured else one.reading.sm_utilisation
        for one in looks
    ]
    return mean(shares)
