"""The rows of ``perfwatch dmon`` as data: what each GPU did in one interval, and which processes and ranks use it."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from perfwatch.processes.control import find_place
from perfwatch.recording.redaction import redact, redact_command
from perfwatch.triage.job import rank_of
from perfwatch_probes import readings as r
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Guests
from perfwatch_probes.nvml_thinning import thinned
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import identify, read_stat
from perfwatch_probes.steps import StepCounter

COUNTERS = tuple(
    name for name in r.GpuSample.__struct_fields__ if name.endswith(("_ns", "received_bytes", "sent_bytes", "_kib"))
)
FIRST_SECONDS = 30.0  # a driver without persistence mode wakes every card first


class Looking(Protocol):
    """What brings readings of GPUs: ``perfwatch_probes.gpu.GpuProbe``."""

    def look(self, full: bool = False) -> list[tuple[float, r.Reading]]:
        """(CLOCK_MONOTONIC, reading) since the last look."""
        ...

    @property
    def trouble(self) -> Unavailable | None:
        """Why nothing comes now, if so."""
        ...


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a card. ``pid``: as we see it, or where that cannot be known the one of the host (``host`` is then true)."""

    pid: int
    host: bool = False
    name: str = ""
    rank: int | None = None
    memory_bytes: int | None = None
    sm_utilisation: float | None = None
    step: int | None = None  # counted by the agent, when the job was started by ``perfwatch run``
    steps_per_second: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One card over one interval. ``activity`` is None where there is no GPM; ``sample`` when the card did not answer."""

    number: str  # as nvidia-smi counts; of a MIG device with its place on the card: 0.1
    at: float  # unix time, end of the interval
    gpu: r.Gpu
    sample: r.GpuSample | None = None
    rates: dict[
        str, float
    ] = {}  # growth a second of the sample's counters, over the last time between two looks at them
    activity: r.GpuActivity | None = None
    errors: r.GpuErrors | None = None
    xids: tuple[int, ...] = ()  # in this interval
    occupants: tuple[Occupant, ...] = ()


class Monitor:
    """Gathers readings and makes rows of them.

    Args:
        probe: the sampler.
        filesystem: where /proc is.
        child: where reads that may block are made.
        clock: CLOCK_MONOTONIC, seconds.
        wall: unix time.
        place_of: the folder where the agent of a process' job counts steps.
        full: every look, instead of one a second.
    """

    def __init__(
        self,
        probe: Looking,
        filesystem: Filesystem,
        child: Caller,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        place_of: Callable[[int], AgentFolder | None] | None = None,
        full: bool = False,
    ) -> None:
        self._probe, self._wall, self._full = probe, wall, full
        self._people = _People(filesystem, child, clock, place_of or _places(Guests(filesystem.proc)))
        self._gpus: dict[str, r.Gpu] = {}
        self._errors: dict[str, r.GpuErrors] = {}
        self._contexts: dict[tuple[str, int], r.GpuProcess] = {}
        self._rates: dict[str, _Rates] = defaultdict(_Rates)
        self._replays: dict[str, int] = {}
        self._fresh: list[tuple[float, r.Reading]] = []

    def gather(self) -> None:
        """Take what has come. Raises Unavailable where there is no driver, or one that refuses."""
        found = self._probe.look(full=self._full)
        trouble = self._probe.trouble
        if trouble is not None and not self._gpus:
            raise trouble
        for at, reading in found:
            if isinstance(reading, r.Gpu):
                self._gpus.pop(reading.number, None)
                self._gpus[reading.uuid] = reading
            elif isinstance(reading, r.GpuErrors):
                self._errors[reading.uuid] = reading
            elif isinstance(reading, r.GpuProcess):
                self._contexts.pop((reading.uuid, reading.pid), None)
                if not reading.gone:
                    self._contexts[reading.uuid, reading.pid] = reading
            elif isinstance(reading, r.GpuSample):
                self._rates[reading.uuid].count(at, reading)
                if reading.pcie_replays is not None:
                    self._replays[reading.uuid] = reading.pcie_replays
            self._fresh.append((at, reading))

    @property
    def silence(self) -> str:
        """Why nothing new comes, if so."""
        trouble = self._probe.trouble
        return trouble.reason if trouble else ""

    @property
    def ready(self) -> bool:
        """True if a first row can be made: every card was read twice."""
        read = {reading.uuid for _, reading in self._fresh if isinstance(reading, r.GpuSample)}
        return bool(self._gpus) and read >= {uuid for uuid, gpu in self._gpus.items() if not gpu.lost}

    def rows(self) -> list[Row]:
        """One row per card for the time since the last call, by number."""
        fresh, self._fresh = self._fresh, []
        means = {(type(one), one.uuid): one for _, one in thinned(fresh)}
        listed = list(self._contexts.values())
        occupants = self._people.describe(listed)
        rows = []
        parts: Counter[int] = Counter()
        for uuid, gpu in sorted(self._gpus.items(), key=lambda one: (one[1].index, one[1].parent_uuid or "", one[0])):
            sample, activity = means.get((r.GpuSample, uuid)), means.get((r.GpuActivity, uuid))
            if (
                isinstance(sample, r.GpuSample) and sample.pcie_replays is None
            ):  # read now and then, and true in between
                sample = msgspec.structs.replace(sample, pcie_replays=self._replays.get(uuid))
            number = str(gpu.index)
            if gpu.parent_uuid is not None:
                number += f".{parts[gpu.index]}"
                parts[gpu.index] += 1
            rows.append(
                Row(
                    number=number,
                    at=self._wall(),
                    gpu=gpu,
                    sample=sample if isinstance(sample, r.GpuSample) else None,
                    rates=dict(self._rates[uuid].per_second),
                    activity=activity if isinstance(activity, r.GpuActivity) else None,
                    errors=self._errors.get(uuid),
                    xids=tuple(one.xid for _, one in fresh if isinstance(one, r.GpuEvent) and one.uuid == uuid),
                    occupants=tuple(occupants[uuid, one.pid] for one in listed if one.uuid == uuid),
                )
            )
        return rows


class _Rates:
    """How fast the counters of one card grow; expensive ones are read every ten seconds."""

    def __init__(self) -> None:
        self.per_second: dict[str, float] = {}
        self._last: dict[str, tuple[float, int]] = {}

    def count(self, at: float, sample: r.GpuSample) -> None:
        for name in COUNTERS:
            value = getattr(sample, name)
            if value is None:
                continue
            before_at, before = self._last.get(name, (at, value))
            if at > before_at and value >= before:
                self.per_second[name] = (value - before) / (at - before_at)
            self._last[name] = (at, value)


def _places(guests: Guests) -> Callable[[int], AgentFolder | None]:
    """Where the agent of a process' job counts steps; another user's folder is looked for and read by guests."""

    def place_of(pid: int) -> AgentFolder | None:
        armed = find_place(pid, guests=guests)
        return armed.folder if armed is not None else None

    return place_of


class _People:
    """Who the processes on the cards are; each is identified once, its steps are read each time."""

    def __init__(
        self,
        filesystem: Filesystem,
        child: Caller,
        clock: Callable[[], float],
        place_of: Callable[[int], AgentFolder | None],
    ) -> None:
        self._filesystem, self._child, self._clock, self._place_of = filesystem, child, clock, place_of
        self._started: dict[int, int] = {}  # by pid, in ticks: another start is another process
        self._known: dict[int, r.Process | None] = {}
        self._places: dict[int, AgentFolder | None] = {}
        self._counters: dict[AgentFolder, StepCounter] = {}
        self._before: dict[int, tuple[float, int]] = {}

    def describe(self, contexts: Iterable[r.GpuProcess]) -> dict[tuple[str, int], Occupant]:
        found = {}
        contexts = list(contexts)
        pids = {one.local_pid for one in contexts if one.local_pid is not None}
        self._forget(pids)
        steps = self._steps(pids)
        for one in contexts:
            process = None if one.local_pid is None else self._identify(one.local_pid)
            step, rate = steps.get(one.local_pid or 0, (None, None))
            found[one.uuid, one.pid] = Occupant(
                pid=one.pid if one.local_pid is None else one.local_pid,
                host=one.local_pid is None,
                name=process.name if process else "",
                rank=rank_of(process) if process else None,
                memory_bytes=one.memory_bytes,
                sm_utilisation=one.sm_utilisation,
                step=step,
                steps_per_second=rate,
            )
        return found

    def _forget(self, pids: set[int]) -> None:
        """Let go of who is on no card any more, also where another process has the pid by now."""
        now = {pid: start for pid in pids if (start := self._start_of(pid)) is not None}
        same = {pid for pid in pids if now.get(pid) in (None, self._started.get(pid))}
        self._started = {pid: start for pid, start in self._started.items() if pid in same} | now
        for remembered in (self._known, self._places, self._before):
            for pid in remembered.keys() - same:
                del remembered[pid]
        self._counters = {place: one for place, one in self._counters.items() if place in self._places.values()}

    def _start_of(self, pid: int) -> int | None:
        try:
            return read_stat(self._filesystem, pid).start_ticks
        except Unavailable:
            return None

    def _identify(self, pid: int) -> r.Process | None:
        if pid not in self._known:
            try:
                self._known[pid] = identify(self._filesystem, pid, self._child, redact_command)
            except Unavailable:
                self._known[pid] = None
        return self._known[pid]

    def _steps(self, pids: set[int]) -> dict[int, tuple[int, float | None]]:
        found: dict[int, tuple[int, float | None]] = {}
        now = self._clock()
        for pid in pids:
            if pid not in self._places:
                self._places[pid] = self._place_of(pid)
        places = {place for pid in pids if (place := self._places[pid]) is not None}
        for place in places:
            counter = self._counters.setdefault(place, StepCounter(place, redact, proc=self._filesystem.proc))
            try:
                counted = [one for one in counter.look() if isinstance(one, r.Steps)]
            except Unavailable:
                continue
            for steps in counted:
                at, count = self._before.get(steps.pid, (now, steps.count))
                rate = (steps.count - count) / (now - at) if now > at else None
                self._before[steps.pid] = (now, steps.count)
                found[steps.pid] = (steps.count, rate)
        return found
