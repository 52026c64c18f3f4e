"""Where time and resources went in one recording, window by window: the samples of a comparison."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from perfwatch.comparison.bootstrap import Windows
from perfwatch.comparison.phases import PHASES, phase_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, R, Seen
from perfwatch.triage.questions import card_looks, cards_of, training_thread
from perfwatch_probes import readings as r

MOST_WINDOWS = 40
SHORTEST_WINDOW_SECONDS = 5.0
MIB = 2.0**20


@dataclass(frozen=True)
class Measure:
    """One figure of a run. unit: ``share`` (0 to 1), or a unit as people write it. group: ``phase`` or what it is about."""

    name: str
    group: str
    unit: str
    windows: Windows


@dataclass
class _Span:
    """The time that counts, cut into windows; takes (when, numerator, denominator)."""

    first_at: float
    last_at: float
    seconds: float = field(init=False)
    _parts: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = max(SHORTEST_WINDOW_SECONDS, (self.last_at - self.first_at) / MOST_WINDOWS)

    def add(self, at: float, numerator: float, denominator: float) -> None:
        if self.first_at <= at <= self.last_at:
            part = self._parts.setdefault(int((at - self.first_at) / self.seconds), [0.0, 0.0])
            part[0] += numerator
            part[1] += denominator

    def windows(self) -> Windows:
        return Windows(tuple((part[0], part[1]) for _, part in sorted(self._parts.items()) if part[1] > 0.0))


def measures(case: Case, first_at: float, last_at: float) -> tuple[Measure, ...]:
    """Every figure that this recording holds, over the time between (seconds since the session began)."""
    history = case.history

    def measure(name: str, group: str, unit: str, found: Iterable[tuple[float, float, float]]) -> Measure | None:
        span = _Span(first_at, last_at)
        for at, numerator, denominator in found:
            span.add(at, numerator, denominator)
        windows = span.windows()
        return Measure(name, group, unit, windows) if windows.parts else None

    ranks = [rank.pid for rank in case.job.ranks]
    found = [
        *(measure(name, "phase", "share", _phase(case, name)) for name in _phases_seen(case)),
        *(measure(name, "GPU", unit, _of_cards(history, ranks, of)) for name, unit, of in _GPU),
        *(measure(name, "GPU", unit, _sampled(history, ranks, of)) for name, unit, of in _CARD),
        measure("CPU of a rank", "CPU", "cores", _growth(history, r.ProcessUsage, ranks, lambda u: u.cpu_seconds)),
        measure("CPUs busy", "CPU", "share", _host(history, lambda h: h.user_seconds + h.system_seconds)),
        measure("CPUs that wait for disks", "CPU", "share", _host(history, lambda h: h.iowait_seconds)),
        measure("CPUs taken by the hypervisor", "CPU", "share", _host(history, lambda h: h.steal_seconds)),
        *(measure(f"some task waits for {what}", "pressure", "share", _pressure(history, what)) for what in _PRESSURES),
        measure(
            "throttled by its quota", "CPU", "share", _growth(history, r.Cgroup, None, lambda c: c.throttled_seconds)
        ),
        measure("memory of a rank", "memory", "MiB", _level(history, ranks, lambda u: u.resident_bytes / MIB)),
        measure("a rank reads", "io", "MiB/s", _growth(history, r.ProcessUsage, ranks, lambda u: _mib(u.read_bytes))),
        measure(
            "a rank writes", "io", "MiB/s", _growth(history, r.ProcessUsage, ranks, lambda u: _mib(u.written_bytes))
        ),
        measure("disks read", "io", "MiB/s", _growth(history, r.Disk, None, lambda d: d.read_bytes / MIB, True)),
        measure("disks write", "io", "MiB/s", _growth(history, r.Disk, None, lambda d: d.written_bytes / MIB, True)),
        measure("network receives", "io", "MiB/s", _growth(history, r.Network, _wires(history), _received, True)),
        measure("network sends", "io", "MiB/s", _growth(history, r.Network, _wires(history), _sent, True)),
        measure("perfwatch itself", "CPU", "cores", _own_cost(history, first_at, last_at)),
    ]
    return tuple(one for one in found if one is not None)


_GPU: tuple[tuple[str, str, Callable[[r.GpuActivity], float | None]], ...] = (
    ("a kernel is resident", "share", lambda a: a.graphics),
    ("multiprocessors active", "share", lambda a: a.sm_active),
    ("tensor cores active", "share", lambda a: a.tensor),
    ("memory bandwidth", "share", lambda a: a.dram),
    ("NVLink receives", "MiB/s", lambda a: a.nvlink_received_mib_per_second),
    ("PCIe receives", "MiB/s", lambda a: a.pcie_received_mib_per_second),
)
_CARD: tuple[tuple[str, str, Callable[[r.GpuSample], float | None]], ...] = (
    ("utilisation", "share", lambda s: s.utilisation),
    ("power", "W", lambda s: s.power_watts),
    ("SM clock", "MHz", lambda s: s.sm_clock_mhz),
    ("memory in use", "MiB", lambda s: None if s.memory_used_bytes is None else s.memory_used_bytes / MIB),
)
_PRESSURES = ("cpu", "memory", "io")

Found = Iterable[tuple[float, float, float]]


def _training_stacks(case: Case) -> list[Seen[r.Stack]]:
    def make() -> list[Seen[r.Stack]]:
        threads = ((rank.pid, training_thread(case.history, rank)) for rank in case.job.ranks)
        return [seen for key in threads for seen in case.history.series(r.Stack, *key) if seen.reading.frames]

    return case.history.once("training stacks", make)


def _phases_seen(case: Case) -> list[str]:
    seen: Counter[str] = Counter(phase_of(one.reading) for one in _training_stacks(case))
    return [phase for phase in PHASES if seen[phase]]


def _phase(case: Case, name: str) -> Found:
    for one in _training_stacks(case):
        yield one.at, one.reading.samples * (phase_of(one.reading) == name), one.reading.samples


def _cards(history: History, ranks: list[int]) -> list[str]:
    return list(dict.fromkeys(uuid for pid in ranks for uuid in cards_of(history, pid).uuids))


def _of_cards(history: History, ranks: list[int], of: Callable[[r.GpuActivity], float | None]) -> Found:
    for uuid in _cards(history, ranks):
        for one in card_looks(history, uuid):
            value = of(one.reading)
            if value is not None:
                yield one.at, value * one.reading.interval_seconds, one.reading.interval_seconds


def _sampled(history: History, ranks: list[int], of: Callable[[r.GpuSample], float | None]) -> Found:
    for uuid in _cards(history, ranks):
        for one in history.series(r.GpuSample, uuid):
            value = of(one.reading)
            if value is not None:
                yield one.at, value, 1.0


def _level(history: History, ranks: list[int], of: Callable[[r.ProcessUsage], float]) -> Found:
    for pid in ranks:
        yield from ((one.at, of(one.reading), 1.0) for one in history.series(r.ProcessUsage, pid))


def _growth(
    history: History,
    kind: type[R],
    keys: list[int] | list[str] | None,
    of: Callable[[R], float | None],
    sum_up: bool = False,
) -> Found:
    """Growth of a counter over time: of a typical entity, or (``sum_up``) of all together. A counter that fell is passed over."""
    entities = history.entities(kind) if keys is None else [(key,) for key in keys]
    for key in entities:
        for before, after in pairwise(history.series(kind, *key)):
            first, last = of(before.reading), of(after.reading)
            if first is not None and last is not None and last >= first:
                seconds = after.at - before.at
                yield after.at, last - first, seconds / len(entities) if sum_up else seconds


def _host(history: History, of: Callable[[r.Host], float]) -> Found:
    def total(host: r.Host) -> float:
        parts = (host.user_seconds, host.system_seconds, host.idle_seconds, host.iowait_seconds, host.steal_seconds)
        return sum(parts)

    for before, after in pairwise(history.series(r.Host)):
        grown = of(after.reading) - of(before.reading)
        if grown >= 0.0:
            yield after.at, grown, total(after.reading) - total(before.reading)


def _pressure(history: History, what: str) -> Found:
    for before, after in pairwise(history.series(r.Host)):
        first, last = before.reading.pressure.get(what), after.reading.pressure.get(what)
        if first is not None and last is not None and last.some_microseconds >= first.some_microseconds:
            yield after.at, (last.some_microseconds - first.some_microseconds) / 1e6, after.at - before.at


def _own_cost(history: History, first_at: float, last_at: float) -> Found:
    """CPU time of the probes; the windows in which nothing was asked count too."""
    calls = [one for one in history.every(r.ProbeCall) if one.reading.cpu_seconds is not None]
    for one in calls:
        yield one.at, one.reading.cpu_seconds or 0.0, 0.0
    step = max(SHORTEST_WINDOW_SECONDS, (last_at - first_at) / MOST_WINDOWS)
    at = first_at
    while calls and at < last_at:
        yield at, 0.0, min(step, last_at - at)
        at += step


def _mib(counter: int | None) -> float | None:
    return None if counter is None else counter / MIB


def _wires(history: History) -> list[str]:
    return [key[0] for key in history.entities(r.Network) if key[0] != "lo"]


def _received(network: r.Network) -> float:
    return network.received_bytes / MIB


def _sent(network: r.Network) -> float:
    return network.sent_bytes / MIB
