"""The flame graph of what the GPU waits for, drawn by Bokeh: width is idle time of the card, depth is who called whom."""

from typing import Any

from bokeh.core.properties import value
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import BoxZoomTool, ColumnDataSource, HoverTool, NumeralTickFormatter, PanTool, Range1d, ResetTool
from bokeh.models import Text as TextGlyph
from bokeh.plotting import figure

from perfwatch.report.gpu_idle import OffGpu
from perfwatch.report.timeline import GRID, INK
from perfwatch.report.waiting import LEAST_SHARE, Box, tree

ROW_HEIGHT, MOST_ROWS = 19, 60
OWN, LIBRARY, ROOT = ("#f08c3a", "#f5a524", "#e5703a"), ("#8b98a8", "#9aa6b4", "#7d8b9c"), "#c8553d"
CHARACTER_SHARE = 1 / 150  # of a plot of about a thousand pixels
TEXT = "#15181c"


def flame(found: OffGpu) -> dict[str, Any]:
    """The plot as one JSON object for ``Bokeh.embed.embed_item``."""
    root = tree(found.awaited)
    boxes = _boxes(root)
    deepest = max(depth for depth, _ in boxes)
    whole = root.seconds or 1.0
    source = ColumnDataSource(
        {
            "left": [box.begins / whole for _, box in boxes],
            "right": [(box.begins + box.seconds) / whole for _, box in boxes],
            "top": [-float(depth) for depth, _ in boxes],
            "bottom": [-float(depth) - 0.94 for depth, _ in boxes],
            "middle": [-float(depth) - 0.47 for depth, _ in boxes],
            "name": [box.name for _, box in boxes],
            "label": [_label(box, whole) for _, box in boxes],
            "colour": [_colour(box, depth) for depth, box in boxes],
            "seconds": [box.seconds for _, box in boxes],
            "share": [box.seconds / whole for _, box in boxes],
            "of_time": [box.seconds / found.measured_seconds for _, box in boxes],
        }
    )
    plot: Any = figure(
        height=(deepest + 1) * ROW_HEIGHT + 46,
        x_range=Range1d(start=0, end=1, bounds=(0, 1)),
        y_range=Range1d(start=-deepest - 1, end=0.1),
        sizing_mode="stretch_width",
        tools=[],
        toolbar_location="right",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    drawn = plot.quad(
        left="left", right="right", top="top", bottom="bottom", fill_color="colour", line_color=None, source=source
    )
    plot.add_glyph(
        source, TextGlyph(x="left", y="middle", text="label", x_offset=4, text_baseline="middle", text_font_size=value("11px"),
                          text_font=value("system-ui"), text_color=TEXT)
    )  # fmt: skip
    hover = HoverTool(
        renderers=[drawn],
        tooltips=[
            ("", "@name"),
            ("of the waiting", "@share{0.0 %}"),
            ("of the time", "@of_time{0.0 %}"),
            ("in all", "@seconds{0.00} s"),
        ],
        visible=False,
    )
    plot.add_tools(hover, BoxZoomTool(dimensions="width"), PanTool(dimensions="width"), ResetTool())
    plot.toolbar.logo = None
    plot.yaxis.visible = False
    plot.grid.grid_line_color = None
    axis = plot.xaxis[0]
    axis.formatter = NumeralTickFormatter(format="0 %")
    axis.major_label_text_color = INK
    axis.axis_line_color = axis.major_tick_line_color = GRID
    axis.minor_tick_line_color = None
    return dict(json_item(plot, ID("flame")))


def _boxes(root: Box) -> list[tuple[int, Box]]:
    """Every box that is wide enough to be seen, with its depth."""
    least = root.seconds * LEAST_SHARE
    found, waiting = [], [(0, root)]
    while waiting:
        depth, box = waiting.pop()
        found.append((depth, box))
        if depth < MOST_ROWS:
            waiting += [(depth + 1, inner) for inner in box.inner.values() if inner.seconds > least]
    return found


def _label(box: Box, whole: float) -> str:
    """As much of the name as fits; the tooltip has all of it."""
    fits = int(box.seconds / whole / CHARACTER_SHARE)
    return box.name if len(box.name) <= fits else f"{box.name[: fits - 1]}…" if fits > 3 else ""


def _colour(box: Box, depth: int) -> str:
    if depth == 0:
        return ROOT
    shades = OWN if box.own else LIBRARY
    return shades[sum(map(ord, box.name)) % len(shades)]
