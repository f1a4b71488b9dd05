"""Strips: a row for each method, with a mark for each of its settings."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from unlearnbench.analysis.best_settings import UTILITY_SHARE, Panel
from unlearnbench.analysis.sensitivity import Strip, StripMark
from unlearnbench.api.benchmark import HeadlineMetric

from ..formatting import rate_text, short
from .marks import (
    Figure,
    error_bars,
    note,
    seeds_of,
    small_layout,
    trace,
    value_axis,
)
from .palette import MUTED, Style, faded, meta

_ROW = 30
"""Pixels of a method's row."""
_SPREAD = 0.3
"""Largest distance of a mark from the middle of its row, in rows."""


def draw_strips(panel: Panel, strips: Sequence[Strip], of: HeadlineMetric, style: Style) -> Figure:
    """Draw the settings of all methods by one number of the headline.

    Settings of a method stand below each other, so that marks of equal numbers are apart. A
    collapsed setting is hollow and has no interval, which would cover the others.

    Args:
        panel: The panel of the strips, for the start model's number and the bar of utility.
        strips: A strip for each method.
        of: The number, on the horizontal axis.
        style: Colours and shapes of the methods.
    """
    traces: list[Figure] = []
    values: list[float | None] = []
    for row, strip in enumerate(strips):
        marks_of_rate: dict[float | None, list[tuple[StripMark, float]]] = defaultdict(list)
        for mark, offset in zip(strip.marks, _offsets(len(strip.marks)), strict=True):
            marks_of_rate[mark.setting.learning_rate].append((mark, -row + offset))
        # Filters hide a learning rate, so that each has a trace of its own.
        for rate, placed in marks_of_rate.items():
            traces.append(_marks(strip.family, rate, placed, of, style))
            values += traces[-1]["x"]
    lines = _lines(panel, of)
    layout = small_layout(of.label, "")
    layout["xaxis"] |= value_axis(values, levels=[at for at, _ in lines.values()])
    layout["yaxis"] |= {
        "tickvals": [-row for row in range(len(strips))],
        "ticktext": [escape(strip.family) for strip in strips],
        "range": [0.6 - len(strips), 0.6],
        "fixedrange": True,
    }
    layout["shapes"] = [_upright(name, at, dash) for name, (at, dash) in lines.items()]
    places = {"xref": "x", "xanchor": "center"}
    layout["annotations"] = [note(name, name, at, 1, **places) for name, (at, _) in lines.items()]
    layout["margin"] = {"l": 20, "r": 12, "t": 48, "b": 28}
    layout["height"] = 84 + _ROW * len(strips)
    return {"data": traces, "layout": layout}


def _offsets(count: int) -> list[float]:
    """Distances of marks from the middle of their row, the first on top."""
    if count == 1:
        return [0.0]
    spread = min(_SPREAD, 0.15 * (count - 1))
    return [spread * (1 - 2 * number / (count - 1)) for number in range(count)]


def _lines(panel: Panel, of: HeadlineMetric) -> dict[str, tuple[float, str]]:
    """Values and dashes of the lines through all rows, by their names."""
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    retain = panel.row("retain")
    lines: dict[str, tuple[float | None, str]] = {}
    if of == kept:
        lines["start"] = (panel.start.utility, "dash")
        lines[f"{100 * UTILITY_SHARE:g} %"] = (panel.least_kept, "dot")
    if of == forgotten:
        lines["start"] = (panel.start.quality, "dash")
        lines["retain"] = (None if retain is None else retain.forgotten, "solid")
    return {name: (at, dash) for name, (at, dash) in lines.items() if at is not None}


def _upright(name: str, at: float, dash: str) -> Figure:
    """Make a vertical line through a figure."""
    line = {"color": MUTED, "width": 1, "dash": dash}
    ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at}
    return {"type": "line", "name": name, "layer": "below", "line": line, **ends}


def _marks(
    family: str,
    rate: float | None,
    placed: Sequence[tuple[StripMark, float]],
    of: HeadlineMetric,
    style: Style,
) -> Figure:
    """Draw the settings of a method at one learning rate, each at its height in the row."""
    colour, shape = style.colour(family), style.shape(family)
    marks = [mark for mark, _ in placed]
    symbols = [f"{shape}-open" if mark.has_collapsed else shape for mark in marks]
    # An open symbol is drawn by its border alone.
    borders = [1.5 if mark.has_collapsed else 0.0 for mark in marks]
    # What a click on a mark opens: the card of this run and epoch.
    opened = [[mark.setting.epoch, mark.setting.rows[0].run_id, _hover(mark)] for mark in marks]
    intervals = [None if mark.has_collapsed else mark.setting.interval(of.column) for mark in marks]
    return trace(
        [short(mark.setting.metrics.get(of.column)) for mark in marks],
        [y for _, y in placed],
        family,
        "%{customdata[2]}<br>" + escape(of.label) + " %{x:.4g}",
        mode="markers",
        marker={
            "color": colour,
            "size": 9,
            "symbol": symbols,
            "line": {"width": borders},
        },
        error_x=error_bars(intervals, color=faded(colour, 0.45), width=0, thickness=1.5),
        customdata=opened,
        meta=meta("curve", family, rate, slot=style.slots[family], alpha=1.0),
    )


def _hover(mark: StripMark) -> str:
    """Name a setting, with what is special about it."""
    setting = mark.setting
    text = f"{setting.method}, learning rate {rate_text(setting.learning_rate)}, {setting.when}"
    text += seeds_of(setting)
    if mark.has_collapsed:
        text += "; collapsed"
    if mark.ended:
        text += f" ({mark.ended})"
    return escape(text)
