"""The timeline of a report: cards, steps, host and events on one time axis, as numbers and paths for inline SVG.

Nothing here is markup: the template writes it, and escapes every text. A path counts in whole units of its lane: x in ``WIDTH``
parts of the recording, y downwards from ``height`` in steps of ``unit``. The page's script reads values from these paths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from perfwatch.report.lanes import MOST_POINTS, Lane, Line, fitted
from perfwatch.report.marks import ROWS, Mark, marks, states
from perfwatch.report.story import Story
from perfwatch.text import duration
from perfwatch.triage.history import median

WIDTH = 20_000  # finer than any screen, coarse enough for short numbers
MOST_IN_ALL = 24_000  # points of a page: 130 kB
MOST_MARKS = 400
MOST_TICKS = 8
INK, MARK = "#7a828d", "#3e8ed0"
STATE_COLOURS = {
    "hung": "#e5484d", "gone": "#b54a4e", "slow": "#f5a524", "inconclusive": "#a35bd6", "busy": "#2a9fd6", "healthy": "#30a46c",
}  # fmt: skip
LINE_COLOURS = (MARK, "#f5a524", "#30a46c", "#e5484d", "#a35bd6", "#14a7a0", "#d6409f", "#8d8d8d")
CARD_COLOURS = {
    "works": "#30a46c", "spins": "#e5484d", "a kernel is resident": "#6f87a6", "tensor cores": "#3e63dd", "memory bandwidth": "#a35bd6",
}  # fmt: skip
FILLED = ("works", "spins", "a kernel is resident")
TICK_SECONDS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip
ROW_HEIGHT = 10
DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis; ``share``: 0 at the left or at the top, 1 at the other end."""

    share: float
    label: str


@dataclass(frozen=True)
class DrawnLine:
    """One line. ``path``: the ``d`` of an SVG path; a filled one starts and ends each of its pieces on the ground."""

    name: str
    colour: str
    path: str
    filled: bool


@dataclass(frozen=True)
class DrawnLane:
    """Lines that share an axis. ``kind``: share, seconds or watts; ``unit``: what one step of y is, in that kind."""

    name: str
    kind: str
    card: bool
    unit: float
    height: int
    ticks: tuple[Tick, ...]
    lines: tuple[DrawnLine, ...]


@dataclass(frozen=True)
class Bar:
    """Something that lasts from ``left``, ``width`` units long, in row number ``row``; or a moment, ``width`` 0."""

    row: int
    left: int
    width: int
    colour: str
    text: str


@dataclass(frozen=True)
class Timeline:
    """All that a page draws. ``begun``: unix seconds at x = 0; ``seconds``: at x = ``WIDTH``; ``states``: what was said, in order."""

    begun: float
    seconds: float
    ticks: tuple[Tick, ...]
    lanes: tuple[DrawnLane, ...]
    states: tuple[Bar, ...]
    events: tuple[Bar, ...]
    width: int = WIDTH
    row_height: int = ROW_HEIGHT
    rows: tuple[str, ...] = ROWS
    state_colours: tuple[tuple[str, str], ...] = tuple(STATE_COLOURS.items())
    tick_seconds: tuple[float, ...] = TICK_SECONDS


def timeline(story: Story, lanes: Sequence[Lane]) -> Timeline:
    """Place everything; ``lanes``: what ``lanes_of`` gives."""
    begun = story.recording.session.created
    seconds = max(story.recording.end, 1.0)
    most = max(2, min(MOST_POINTS, MOST_IN_ALL // max(1, sum(len(lane.lines) for lane in lanes))))
    said = states(story)[-MOST_MARKS:]
    return Timeline(
        begun=begun,
        seconds=seconds,
        ticks=time_ticks(begun, seconds),
        lanes=tuple(drawn(fitted(lane, most), seconds) for lane in lanes),
        states=tuple(_bar(one.begun, one.ended - one.begun, 0, one.state, one.text, seconds) for one in said),
        events=tuple(_event(one, seconds) for one in marks(story)[:MOST_MARKS]),
    )


def time_ticks(begun: float, seconds: float) -> tuple[Tick, ...]:
    """At most a few round times of the clock, UTC."""
    step = next((one for one in TICK_SECONDS if seconds / one <= MOST_TICKS), None)
    step = step or DAY_SECONDS * math.ceil(seconds / DAY_SECONDS / MOST_TICKS)
    shape = (
        "%d %b %H:%M"
        if seconds > DAY_SECONDS
        else "%H:%M"
        if step >= 60
        else "%H:%M:%S"
        if step >= 1
        else "%H:%M:%S.%f"
    )
    first = math.ceil(begun / step) * step
    count = int((begun + seconds - first) / step) + 1
    times = [first + number * step for number in range(count)]
    cut = -4 if step < 1 else None  # of microseconds, hundredths
    return tuple(
        Tick((at - begun) / seconds, datetime.fromtimestamp(at, timezone.utc).strftime(shape)[:cut]) for at in times
    )


def drawn(lane: Lane, seconds: float) -> DrawnLane:
    """One lane of a recording that lasted so long, with a colour for each of its lines."""
    values = [value for line in lane.lines for _, value in line.points if not math.isnan(value)]
    unit, top, ticks = _axis(lane.kind, values)
    height = max(1, round(top / unit))
    lines = tuple(
        DrawnLine(
            name=line.name,
            colour=CARD_COLOURS.get(line.name, INK) if lane.card else LINE_COLOURS[number % len(LINE_COLOURS)],
            path=_path(_placed(line, seconds, unit, height), height if lane.card and line.name in FILLED else None),
            filled=lane.card and line.name in FILLED,
        )
        for number, line in enumerate(lane.lines)
    )
    return DrawnLane(lane.name, lane.kind, lane.card, unit, height, ticks, lines)


def _axis(kind: str, values: Sequence[float]) -> tuple[float, float, tuple[Tick, ...]]:
    """The size of a unit, the top of the axis, and its labels."""
    if kind == "share":
        return 0.001, 1.0, tuple(Tick(1 - share, f"{share:.0%}") for share in (1.0, 0.5, 0.0))
    highest = max(values, default=0.0) or 1.0
    step = 10.0 ** math.floor(math.log10(highest))
    step = next(step * factor for factor in (0.2, 0.5, 1, 2, 5) if highest <= 4 * step * factor)
    count = math.ceil(highest / step)
    top = count * step
    usual = (median([value for value in values if value > 0]) or highest) if kind == "seconds" else highest
    unit = max(10.0 ** (math.floor(math.log10(usual)) - 2), top / 1e6)
    labels = (0, count // 2, count) if count % 2 == 0 else (0, count)
    return unit, top, tuple(Tick(1 - number / count, _label(kind, number * step)) for number in reversed(labels))


def _label(kind: str, value: float) -> str:
    return f"{value:.0f} W" if kind == "watts" else duration(value, 3) if value else "0"


def _placed(line: Line, seconds: float, unit: float, height: int) -> list[list[tuple[int, int]]]:
    """The points in units, in pieces: a line is broken where nothing was read."""
    pieces: list[list[tuple[int, int]]] = [[]]
    for at, value in line.points:
        if math.isnan(value):
            pieces.append([])
            continue
        x = min(WIDTH, max(0, round(at / seconds * WIDTH)))
        pieces[-1].append((x, height - min(height, max(0, round(value / unit)))))
    return [_straight(piece) for piece in pieces if piece]


def _straight(piece: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without the points in the middle of a level stretch."""
    ends = range(1, len(piece) - 1)
    level = {number for number in ends if piece[number - 1][1] == piece[number][1] == piece[number + 1][1]}
    return [point for number, point in enumerate(piece) if number not in level]


def _path(pieces: Sequence[Sequence[tuple[int, int]]], ground: int | None) -> str:
    """Relative steps are short; a single point is a dot. ``ground``: y of the axis, where the space below is filled."""
    parts = []
    for piece in pieces:
        (x, y), steps = piece[0], []
        parts.append(f"M{x} {y}" if ground is None else f"M{x} {ground}V{y}")
        for to_x, to_y in piece[1:]:
            steps += [to_x - x, to_y - y]
            x, y = to_x, to_y
        parts.append("l" + " ".join(map(str, steps)).replace(" -", "-") if steps else "h0")
        parts.append("" if ground is None else f"V{ground}")
    return "".join(parts)


def _event(mark: Mark, seconds: float) -> Bar:
    return _bar(mark.at, mark.seconds, ROWS.index(mark.row), mark.state, mark.text, seconds)


def _bar(begun: float, lasted: float, row: int, state: str, text: str, seconds: float) -> Bar:
    left = min(WIDTH, max(0, round(begun / seconds * WIDTH)))
    width = min(WIDTH - left, max(1, round(lasted / seconds * WIDTH))) if lasted > 0 else 0
    return Bar(row, left, width, STATE_COLOURS.get(state, MARK if not state else INK), text)
