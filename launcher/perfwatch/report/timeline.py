"""The timeline of a report: cards, steps, host and events on one time axis that can be zoomed, drawn by Bokeh.

Only Bokeh's own models are used: what a reader sees of it is text and data, no code, so nothing from the job can run in a browser.
"""

from collections.abc import Sequence
from typing import Any

from bokeh.core.properties import value
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.layouts import gridplot
from bokeh.models import (
    BoxZoomTool,
    CDSView,
    ColumnDataSource,
    CrosshairTool,
    DataRange1d,
    DatetimeTickFormatter,
    Grid,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
    RangeTool,
    ResetTool,
    Tool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.models.annotations import Span
from bokeh.models.glyphs import HBar, Scatter, VArea
from bokeh.models.glyphs import Line as LineGlyph
from bokeh.plotting import figure

from perfwatch.report.lanes import Lane, Line, fitted
from perfwatch.report.marks import ROWS, Mark, marks, states
from perfwatch.report.story import Story
from perfwatch.text import clean

MILLISECONDS = 1000.0
INK, GRID = "#7a828d", "rgba(122, 130, 141, 0.25)"  # readable on white and on black
STATE_COLOURS = {
    "hung": "#e5484d", "gone": "#b54a4e", "slow": "#f5a524", "inconclusive": "#a35bd6", "busy": "#2a9fd6", "healthy": "#30a46c",
}  # fmt: skip
LINE_COLOURS = ("#3e8ed0", "#f5a524", "#30a46c", "#e5484d", "#a35bd6", "#14a7a0", "#d6409f", "#8d8d8d")
CARD_COLOURS = {
    "works": "#30a46c", "spins": "#e5484d", "a kernel is resident": "#6f87a6", "tensor cores": "#3e63dd", "memory bandwidth": "#a35bd6",
}  # fmt: skip
FILLED = ("works", "spins", "a kernel is resident")
CARD_HEIGHT, LANE_HEIGHT, EVENT_HEIGHT, OVERVIEW_HEIGHT = 78, 122, 132, 40
LABEL_WIDTH = 64
DURATION = "@seconds{0.[0]} s"
TIME = "%H:%M:%S.%3N"


def timeline(story: Story, lanes: Sequence[Lane]) -> dict[str, Any]:
    """The plot as one JSON object for ``Bokeh.embed.embed_item``; ``lanes``: what ``lanes_of`` gives."""
    begun = story.recording.session.created
    end = max(story.recording.end, 1.0)
    span = Range1d(start=begun * MILLISECONDS, end=(begun + end) * MILLISECONDS, bounds=_around(begun, end))
    plots = [(_cards if lane.card else _lines)(fitted(lane), begun, span) for lane in lanes]
    plots.append(_events(story, begun, span))
    upright = Span(dimension="height", line_color=INK, line_dash="dotted")
    for plot in plots[:-1]:
        plot.add_layout(Grid(dimension=0, ticker=plots[-1].xaxis[0].ticker, grid_line_color=GRID))
    for plot in plots:
        # One crosshair for all: what happened at the same moment is found at a glance.
        plot.add_tools(CrosshairTool(overlay=upright, visible=False), *_tools())
    # One range: of all.
    plots[-1].add_tools(ZoomInTool(dimensions="width"), ZoomOutTool(dimensions="width"), ResetTool())
    overview = _overview(story, begun, end, span)
    grid = gridplot(
        [[plot] for plot in (*plots, overview)],
        merge_tools=True,
        toolbar_location="right",
        sizing_mode="stretch_width",
        toolbar_options={"logo": None},
    )
    return dict(json_item(grid, ID("timeline")))


def keys(lanes: Sequence[Lane]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What the colours mean: (lane, [(line, colour)]); all cards share theirs."""
    found: dict[str, list[tuple[str, str]]] = {}
    for lane in lanes:
        if lane.card:
            of_cards = found.setdefault("cards", [])
            of_cards += [pair for line in lane.lines if (pair := (line.name, CARD_COLOURS[line.name])) not in of_cards]
        else:
            found[lane.name] = list(zip((line.name for line in lane.lines), _cycle(len(lane.lines)), strict=True))
    return [*found.items(), ("verdict", list(STATE_COLOURS.items()))]


def _tools() -> list[Tool]:
    """A drag chooses a span of time; the wheel scrolls the page until its tool is chosen."""
    return [BoxZoomTool(dimensions="width"), WheelZoomTool(dimensions="width")]


def _around(begun: float, end: float) -> tuple[float, float]:
    return (begun - 0.02 * end) * MILLISECONDS, (begun + 1.02 * end) * MILLISECONDS


def _figure(title: str, span: Range1d, height: int, axis: str | None = None, **options: Any) -> Any:
    """A lane. Only the lowest has an axis of time: each would bring a dozen tickers of its own."""
    plot: Any = figure(
        height=height,
        x_range=span,
        x_axis_type=axis,  # type: ignore[arg-type]
        tools=[],
        title=clean(title),
        sizing_mode="stretch_width",
        min_border_left=LABEL_WIDTH,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=GRID,
        **options,
    )
    plot.title.text_color = INK
    plot.title.text_font_size = "12px"
    plot.title.text_font = "system-ui"
    for side in (*plot.xaxis, *plot.yaxis):
        side.major_label_text_color = INK
        side.axis_line_color = GRID
        side.major_tick_line_color = GRID
        side.minor_tick_line_color = None
        side.major_label_text_font = "system-ui"
    hours: Any = dict.fromkeys(("seconds", "minsec", "minutes", "hourmin", "hours"), "%H:%M:%S")
    for side in plot.xaxis:
        side.formatter = DatetimeTickFormatter(milliseconds="%S.%3N s", days="%d %b", **hours)
    for grid in plot.grid:
        grid.grid_line_color = GRID
    return plot


def _sources(lane: Lane, begun: float) -> list[tuple[ColumnDataSource, CDSView, list[tuple[str, str]]]]:
    """Lines that were read at the same moments share a source and its view, and so a tooltip: (source, view, [(name, column)])."""
    alike: dict[tuple[float, ...], list[Line]] = {}
    for line in lane.lines:
        alike.setdefault(tuple(at for at, _ in line.points), []).append(line)
    found = []
    for times, lines in alike.items():
        columns = {
            f"value{place}": _numbers([value for _, value in line.points], 32) for place, line in enumerate(lines)
        }
        columns["time"] = _numbers([(begun + at) * MILLISECONDS for at in times])
        named = [(line.name, f"value{place}") for place, line in enumerate(lines)]
        found.append((ColumnDataSource(columns), CDSView(), named))
    return found


def _numbers(values: Sequence[float], bits: int = 64) -> Any:
    """As an array, which Bokeh stores in a third of the space."""
    import numpy

    return numpy.array(values, dtype=f"float{bits}")


def _cards(lane: Lane, begun: float, span: Range1d) -> Any:
    plot = _figure(lane.name, span, CARD_HEIGHT, y_range=(0, 1.02))
    plot.yaxis[0].formatter = NumeralTickFormatter(format="0 %")
    plot.yaxis[0].ticker = [0, 0.5, 1]
    for source, view, columns in _sources(lane, begun):
        for name, column in columns:
            colour = CARD_COLOURS.get(name, INK)
            if name in FILLED:
                area = VArea(x="time", y1=value(0.0), y2=column, fill_color=colour, fill_alpha=0.55)
                plot.add_glyph(source, area, view=view)
            line = LineGlyph(x="time", y=column, line_color=colour, line_width=1.1)
            drawn = plot.add_glyph(source, line, view=view)
        plot.add_tools(_hover(drawn, columns, "{0.0 %}"))
    return plot


def _lines(lane: Lane, begun: float, span: Range1d) -> Any:
    options: dict[str, Any] = {"y_range": (0, 1.02) if lane.kind == "share" else DataRange1d(start=0)}
    plot = _figure(f"{lane.name} ({lane.kind})" if lane.kind != "share" else lane.name, span, LANE_HEIGHT, **options)
    axis, shown = {
        "share": ("0 %", "{0.0 %}"), "seconds": ("0.[000]", "{0.[000]} s"), "watts": ("0", "{0} W"),
    }[lane.kind]  # fmt: skip
    plot.yaxis[0].formatter = NumeralTickFormatter(format=axis)
    colours = dict(zip((line.name for line in lane.lines), _cycle(len(lane.lines)), strict=True))
    for source, view, columns in _sources(lane, begun):
        for name, column in columns:
            line = LineGlyph(x="time", y=column, line_color=colours[name], line_width=1.4)
            drawn = plot.add_glyph(source, line, view=view)
        plot.add_tools(_hover(drawn, columns, shown))
    return plot


def _cycle(count: int) -> list[str]:
    return [LINE_COLOURS[number % len(LINE_COLOURS)] for number in range(count)]


def _hover(drawn: Any, columns: list[tuple[str, str]], shape: str) -> HoverTool:
    lines = [(clean(name), f"@{column}{shape}") for name, column in columns]
    return HoverTool(
        renderers=[drawn],
        tooltips=[*lines, ("at", f"@time{{{TIME}}}")],
        formatters={"@time": "datetime"},
        mode="vline",
        visible=False,
    )


def _events(story: Story, begun: float, span: Range1d) -> Any:
    plot = _figure("events", span, EVENT_HEIGHT, "datetime", y_range=list(reversed(ROWS)))
    stretches = states(story)
    bars = ColumnDataSource(
        {
            "row": [ROWS[0]] * len(stretches),
            "from": [(begun + one.begun) * MILLISECONDS for one in stretches],
            "to": [(begun + one.ended) * MILLISECONDS for one in stretches],
            "colour": [STATE_COLOURS.get(one.state, INK) for one in stretches],
            "text": [one.text for one in stretches],
            "seconds": [one.ended - one.begun for one in stretches],
        }
    )
    glyph = HBar(y="row", left="from", right="to", height=0.62, fill_color="colour", line_color=None, fill_alpha=0.85)
    drawn = plot.add_glyph(bars, glyph)
    plot.add_tools(_told(drawn, [("verdict", "@text"), ("for", DURATION)]))
    points: Sequence[Mark] = marks(story)
    lasting = [one for one in points if one.seconds > 0]
    source = ColumnDataSource(
        {
            "row": [one.row for one in points],
            "time": [(begun + one.at) * MILLISECONDS for one in points],
            "text": [one.text for one in points],
            "colour": [STATE_COLOURS.get(one.state, "#3e8ed0") for one in points],
            "clock": [(begun + one.at) * MILLISECONDS for one in points],
        }
    )
    dots = plot.add_glyph(
        source, Scatter(x="time", y="row", marker="diamond", size=11, fill_color="colour", line_color=None)
    )
    plot.add_tools(_told(dots, [("", "@text"), ("at", f"@clock{{{TIME}}}")]))
    if lasting:
        windows = ColumnDataSource(
            {
                "row": [one.row for one in lasting],
                "from": [(begun + one.at) * MILLISECONDS for one in lasting],
                "to": [(begun + one.at + one.seconds) * MILLISECONDS for one in lasting],
                "text": [one.text for one in lasting],
                "seconds": [one.seconds for one in lasting],
            }
        )
        shape = HBar(y="row", left="from", right="to", height=0.5, fill_color="#3e8ed0", line_color=None)
        plot.add_tools(_told(plot.add_glyph(windows, shape), [("", "@text"), ("for", DURATION)]))
    return plot


def _told(drawn: Any, tooltips: list[tuple[str, str]]) -> HoverTool:
    return HoverTool(renderers=[drawn], tooltips=tooltips, formatters={"@clock": "datetime"}, visible=False)


def _overview(story: Story, begun: float, end: float, span: Range1d) -> Any:
    """The whole time in small: the grey window is what the lanes above show, and it can be dragged."""
    whole = Range1d(start=begun * MILLISECONDS, end=(begun + end) * MILLISECONDS)
    plot = _figure("", whole, OVERVIEW_HEIGHT, y_range=(0, 1))
    plot.title.visible = False
    plot.yaxis.visible = False
    plot.ygrid.grid_line_color = None
    stretches = states(story)
    bars = ColumnDataSource(
        {
            "from": [(begun + one.begun) * MILLISECONDS for one in stretches],
            "to": [(begun + one.ended) * MILLISECONDS for one in stretches],
            "colour": [STATE_COLOURS.get(one.state, INK) for one in stretches],
        }
    )
    glyph = HBar(
        y=value(0.5), left="from", right="to", height=value(1.0), fill_color="colour", fill_alpha=0.35, line_color=None
    )
    plot.add_glyph(bars, glyph)
    tool = RangeTool(x_range=span)
    tool.overlay.fill_color = INK
    tool.overlay.fill_alpha = 0.25
    plot.add_tools(tool)
    return plot
