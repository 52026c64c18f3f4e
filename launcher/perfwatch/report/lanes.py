"""What changed over time, as lines ready to be drawn: cards, steps, host. Nothing is drawn here.

Times are seconds since the session began. A line of which nothing is known is not there. ``fitted`` makes of a lane what a page
can show: long recordings as means over equal spans of time, and broken (NaN) where nothing was read, for missing is not zero.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfwatch.triage.history import History, R, Seen, median
from perfwatch.triage.questions import card_looks, spins
from perfwatch_probes import readings as r

MOST_POINTS = 900  # of one line: more than a screen has columns
GAP_INTERVALS, GAP_SECONDS = 4.0, 5.0  # a line is broken where nothing was read for so long ...
SELDOM_SECONDS = 25.0  # ... of what a calm watcher reads every ten seconds
MICROSECONDS = 1e6
NAN = math.nan
MIDDLES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "median": lambda values: median(values) or 0.0,
    "longest": max,
}

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Line:
    """One line: (time, value) in order.

    middle: what stands for several values: mean, median or longest; gap_seconds: without a value for so long it is broken.
    """

    name: str
    points: Points
    middle: str = "mean"
    gap_seconds: float = GAP_SECONDS


@dataclass(frozen=True)
class Lane:
    """Lines that share an axis. kind: ``share`` (0 to 1), ``seconds``, ``watts``; note: what a reader must know of it.

    card: it tells of one card.
    """

    name: str
    kind: str
    lines: tuple[Line, ...]
    note: str = ""
    card: bool = False


def lanes_of(history: History) -> list[Lane]:
    """All that is known, in the order in which it is shown."""
    others = (step_lane(history), power_lane(history), host_lane(history))
    return [*card_lanes(history), *(lane for lane in others if lane is not None)]


def card_lanes(history: History) -> list[Lane]:
    """One lane per card: the share of time in which it worked, and in which a kernel only spun; the rest it waited."""
    found = []
    for uuid in sorted({key[0] for key in history.entities(r.GpuSample) + history.entities(r.GpuActivity)}):
        seen = history.latest(r.Gpu, uuid)
        name = uuid if seen is None else f"gpu {seen.reading.index}"
        looks = card_looks(history, uuid)
        if looks:
            lines = (
                _line("works", looks, lambda a: None if a.graphics is None else 0.0 if spins(a) else a.graphics),
                _line("spins", looks, lambda a: None if a.graphics is None else a.graphics if spins(a) else 0.0),
                _line("tensor cores", looks, lambda a: a.tensor),
                _line("memory bandwidth", looks, lambda a: a.dram),
            )
            found.append(Lane(name, "share", tuple(one for one in lines if one.points), card=True))
        else:
            samples = history.series(r.GpuSample, uuid)
            line = _line("a kernel is resident", samples, lambda s: s.utilisation)
            note = "this card does not tell what its units do: a resident kernel may work or spin"
            found.append(Lane(name, "share", (line,) if line.points else (), note, card=True))
    return sorted((lane for lane in found if lane.lines), key=lambda lane: (len(lane.name), lane.name))


def power_lane(history: History) -> Lane | None:
    """Watts of every card."""
    lines = []
    for (uuid,) in sorted(history.entities(r.GpuSample)):
        seen = history.latest(r.Gpu, uuid)
        name = uuid if seen is None else f"gpu {seen.reading.index}"
        lines.append(_line(name, history.series(r.GpuSample, uuid), lambda s: s.power_watts))
    kept = tuple(sorted((line for line in lines if line.points), key=lambda line: (len(line.name), line.name)))
    return Lane("power", "watts", kept) if kept else None


def step_lane(history: History) -> Lane | None:
    """Step times of all ranks: the middle one and the longest of each span; None where no step was counted."""
    points: list[tuple[float, float]] = []
    for key in history.entities(r.Steps):
        for one in history.series(r.Steps, *key):
            ended = one.at
            for interval in reversed(one.reading.interval_seconds):
                points.append((max(0.0, ended), interval))  # a watcher that came later knows of earlier steps
                ended -= interval
    if not points:
        return None
    points.sort()
    lines = (Line("median", tuple(points), "median"), Line("longest", tuple(points), "longest"))
    return Lane("step time", "seconds", lines)


def host_lane(history: History) -> Lane | None:
    """Shares of the machine: CPUs busy, memory in use, and of the time in which a task waited for CPU, memory or disk."""
    series = history.series(r.Host)
    lines = [
        Line("CPUs busy", _grown(series, _busy, _all_cpu)),
        Line("memory in use", tuple((one.at, _memory(one.reading)) for one in series)),
    ]
    for what in ("cpu", "io", "memory"):
        lines.append(Line(f"{what} pressure", _grown(series, _pressure(what), None, MICROSECONDS)))
    kept = tuple(replace(line, gap_seconds=SELDOM_SECONDS) for line in lines if line.points)
    return Lane("host", "share", kept) if kept else None


def _line(name: str, series: Sequence[Seen[R]], value: Callable[[R], float | None]) -> Line:
    return Line(name, tuple((one.at, found) for one in series if (found := value(one.reading)) is not None))


def _busy(host: r.Host) -> float:
    return host.user_seconds + host.system_seconds


def _all_cpu(host: r.Host) -> float:
    return _busy(host) + host.idle_seconds + host.iowait_seconds + host.steal_seconds


def _memory(host: r.Host) -> float:
    return 1.0 - host.memory_available_bytes / host.memory_total_bytes if host.memory_total_bytes else NAN


def _pressure(what: str) -> Callable[[r.Host], float | None]:
    return lambda host: host.pressure[what].some_microseconds if what in host.pressure else None


def _grown(
    series: Sequence[Seen[r.Host]],
    counter: Callable[[r.Host], float | None],
    against: Callable[[r.Host], float | None] | None,
    per_second: float = 1.0,
) -> Points:
    """Growth of one counter as a share of another's, or of time, from reading to reading."""
    points = []
    for before, after in pairwise(series):
        first, last = counter(before.reading), counter(after.reading)
        begun = before.at * per_second if against is None else against(before.reading)
        ended = after.at * per_second if against is None else against(after.reading)
        if None in (first, last, begun, ended) or ended <= begun or last < first:  # type: ignore[operator]
            continue
        points.append((after.at, min(1.0, (last - first) / (ended - begun))))  # type: ignore[operator]
    return tuple(points)


def fitted(lane: Lane, most: int = MOST_POINTS) -> Lane:
    """The same with at most so many points in a line, and broken where nothing was read."""
    lines = (
        replace(line, points=_broken(_thinned(line.points, MIDDLES[line.middle], most), line.gap_seconds))
        for line in lane.lines
    )
    return replace(lane, lines=tuple(lines))


def _thinned(points: Points, middle: Callable[[Sequence[float]], float], most: int) -> Points:
    """At most ``most``, each the ``middle`` of a span of time."""
    if len(points) <= most:
        return points
    begun = points[0][0]
    span = (points[-1][0] - begun) / most or 1.0
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        spans[int((point[0] - begun) / span)].append(point)
    return tuple((held[-1][0], middle([value for _, value in held])) for _, held in sorted(spans.items()))


def _broken(points: Points, gap_seconds: float) -> Points:
    usual = median([after[0] - before[0] for before, after in pairwise(points)]) or 0.0
    longest = max(gap_seconds, GAP_INTERVALS * usual)
    kept: list[tuple[float, float]] = []
    for at, value in points:
        if kept and at - kept[-1][0] > longest:
            kept.append((at, NAN))
        kept.append((at, value))
    return tuple(kept)
