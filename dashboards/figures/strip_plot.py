"""Strips: a row for each method, with a mark for each of its settings."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import UTILITY_SHARE, Panel
from unlearnbench.analysis.sensitivity import Strip, StripMark
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.stats.t_interval import Interval

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


class _PlacedMark(NamedTuple):
    """A mark of a strip, at its height in the figure."""

    mark: StripMark
    y: float
    """Rows are at 0, -1, -2 and so on."""


class _Upright(NamedTuple):
    """A vertical line through all rows."""

    name: str
    value: float
    dash: str


def draw_strips(
    panel: Panel, strips: Sequence[Strip], metric: HeadlineMetric, style: Style
) -> Figure:
    """Draw the settings of all methods by one number of the headline.

    Settings of a method stand below each other, so that marks of equal numbers are apart. A
    collapsed setting is hollow and has no interval, which would cover the others.

    Args:
        panel: The panel of the strips, for the start model's number and the bar of utility.
        strips: A strip for each method.
        metric: The number, on the horizontal axis.
        style: Colours and shapes of the methods.
    """
    traces: list[Figure] = []
    for row, strip in enumerate(strips):
        marks_of_rate: dict[float | None, list[_PlacedMark]] = defaultdict(list)
        for mark, offset in zip(strip.marks, _offsets(len(strip.marks)), strict=True):
            marks_of_rate[mark.setting.learning_rate].append(_PlacedMark(mark, -row + offset))
        # A filter of the page hides a learning rate, so each rate is a trace of its own.
        for rate, placed in marks_of_rate.items():
            traces.append(_marks(strip.family, rate, placed, metric, style))

    uprights = _uprights(panel, metric)
    values = [value for drawn in traces for value in drawn["x"]]
    layout = small_layout(metric.label, "")
    layout["xaxis"] |= value_axis(values, levels=[upright.value for upright in uprights])
    layout["yaxis"] |= {
        "tickvals": [-row for row in range(len(strips))],
        "ticktext": [escape(strip.family) for strip in strips],
        "range": [0.6 - len(strips), 0.6],
        "fixedrange": True,
    }
    layout["shapes"] = [_line_of(upright) for upright in uprights]
    layout["annotations"] = [
        note(upright.name, upright.name, upright.value, 1, xref="x", xanchor="center")
        for upright in uprights
    ]
    layout["margin"] = {"l": 20, "r": 12, "t": 48, "b": 28}
    layout["height"] = 84 + _ROW * len(strips)
    return {"data": traces, "layout": layout}


def _offsets(count: int) -> list[float]:
    """Return the distances of marks from the middle of their row, in rows. The first is on top."""
    if count == 1:
        return [0.0]
    steps = count - 1
    spread = min(_SPREAD, 0.15 * steps)
    return [spread * (1 - 2 * number / steps) for number in range(count)]


def _uprights(panel: Panel, metric: HeadlineMetric) -> list[_Upright]:
    """List the vertical lines through all rows. A number that is not known has no line."""
    retain = panel.row("retain")
    lines: list[tuple[str, float | None, str]] = []
    if metric == panel.headline.kept:
        lines.append(("start", panel.start.utility, "dash"))
        lines.append((f"{100 * UTILITY_SHARE:g} %", panel.least_kept, "dot"))
    if metric == panel.headline.forgotten:
        lines.append(("start", panel.start.quality, "dash"))
        lines.append(("retain", None if retain is None else retain.forgotten, "solid"))
    return [_Upright(name, value, dash) for name, value, dash in lines if value is not None]


def _line_of(upright: _Upright) -> Figure:
    """Make the shape of a vertical line."""
    return {
        "type": "line",
        "name": upright.name,
        "layer": "below",
        "line": {"color": MUTED, "width": 1, "dash": upright.dash},
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": upright.value,
        "x1": upright.value,
    }


def _marks(
    family: str,
    rate: float | None,
    placed: Sequence[_PlacedMark],
    metric: HeadlineMetric,
    style: Style,
) -> Figure:
    """Draw the settings of a method at one learning rate, each at its height in the row."""
    colour = style.colour(family)
    shape = style.shape(family)
    values: list[float | None] = []
    symbols: list[str] = []
    borders: list[float] = []
    intervals: list[Interval | None] = []
    # A click on a mark opens the card of this epoch and run.
    opened: list[list[Any]] = []
    for mark, _ in placed:
        setting = mark.setting
        values.append(short(setting.metrics.get(metric.column)))
        symbols.append(f"{shape}-open" if mark.has_collapsed else shape)
        # Plotly draws only the border of an open symbol.
        borders.append(1.5 if mark.has_collapsed else 0.0)
        intervals.append(None if mark.has_collapsed else setting.interval(metric.column))
        opened.append([setting.epoch, setting.rows[0].run_id, _hover(mark)])
    return trace(
        values,
        [y for _, y in placed],
        family,
        "%{customdata[2]}<br>" + escape(metric.label) + " %{x:.4g}",
        mode="markers",
        marker={"color": colour, "size": 9, "symbol": symbols, "line": {"width": borders}},
        error_x=error_bars(intervals, color=faded(colour, 0.45), width=0, thickness=1.5),
        customdata=opened,
        meta=meta("curve", family, rate, slot=style.slots[family], alpha=1.0),
    )


def _hover(mark: StripMark) -> str:
    """Name a setting, and say if it collapsed or if one of its runs ended early."""
    setting = mark.setting
    text = f"{setting.method}, learning rate {rate_text(setting.learning_rate)}, {setting.when}"
    text += seeds_of(setting)
    if mark.has_collapsed:
        text += "; collapsed"
    if mark.ended:
        text += f" ({mark.ended})"
    return escape(text)
