"""Figures for a notebook or a paper: the page's own, side by side, with a title and a legend.

Every figure is laid out in the pixels of a screen, with a font of 12. For a width in print its
frame is as wide as the paper's at that font, and files are scaled to the paper's font size: marks,
lines and legends keep their proportions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.analysis.best_settings import (
    Choice,
    EarlyEnd,
    headline_of_rows,
    panel_label,
    unit_of_rows,
)
from unlearnbench.api.benchmark import split_order
from unlearnbench.base.errors import UnlearnbenchError, did_you_mean
from unlearnbench.evaluation.benchmark_schema import filled_columns
from unlearnbench.results.table import TableRow

from ..formatting import rate_text
from .curve_plot import NAME_LINE, curves, name_lines, name_margin
from .marks import Figure
from .palette import GRID, INK, MUTED, Style, meta
from .tradeoff_data import panels
from .tradeoff_plot import draw, name_marks

_AXIS = {"gridcolor": GRID, "tickfont": {"size": 11, "color": MUTED}, "title": {"standoff": 6}}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "Helvetica, Arial, sans-serif", "color": INK, "size": 12},
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "hovermode": "closest",
        "xaxis": _AXIS | {"title_font_size": 12},
        "yaxis": _AXIS | {"title_font_size": 12},
        "title": {"x": 0.01, "y": 1, "yanchor": "top", "pad": {"t": 12}, "font": {"size": 16}},
        "legend": {"orientation": "h", "x": 0, "yanchor": "top", "tracegroupgap": 0},
    }
)
"""Layout of all figures for paper."""
WIDTHS = {"column": 3.25, "text": 6.75}
"""Inches of a column and of the text, in the usual templates of conferences."""
_POINTS, _COLUMN_POINTS = 9.0, 8.0
"""Points of the font of a screen, at 96 pixels an inch, and of a column."""
_DPI = 300
"""Dots per inch of a PNG for print."""
_NARROW = 5.0
"""Inches below which panels are below each other."""
_GAP, _LINE = 52, 18
"""Pixels between rows of panels, for ticks and titles; height of a title's second line."""
_LEFT, _RIGHT = 60, 12
"""Pixels beside all cells."""
_COLUMN_ASPECT = 0.85
"""Height of a trade-off by its width in a column, where names stand at the marks."""
_OF_FORGET_SET = 2
"""Metrics of the forget set that are drawn where none are named."""

Cells = dict[tuple[int, int], tuple[str, Figure]]
"""Titles and figures by row and column, from 1."""


def pareto(
    table: Sequence[TableRow],
    *,
    every: Sequence[TableRow] | None = None,
    width: str | float | None = None,
    choices: Sequence[Choice] = (),
    ends: Sequence[EarlyEnd] = (),
) -> go.Figure:
    """Draw what is kept against what is forgotten: rows are models, columns splits.

    table    `Results.read(folder).rows`, or a part of them
    every    the whole table, whose colours and shapes a part of it keeps (default: this part)
    width    see `fit`
    choices  `Results.choices`, which are ringed in place of the best of all settings
    ends     `Results.ends`: runs that ended early
    """
    headline = headline_of_rows(table)
    style = Style.of(table if every is None else every)
    shown = panels(table, choices, ends)
    models = list(dict.fromkeys(p.model for p in shown))
    fractions = sorted({p.forget_fraction for p in shown}, key=split_order)
    cells: Cells = {}
    for i, panel in enumerate(shown):
        location = models.index(panel.model) + 1, fractions.index(panel.forget_fraction) + 1
        drawn = draw(panel, style)
        if _is_narrow(width):
            name_marks(drawn, panel, style, frame_of(width, _COLUMN_ASPECT))
        elif len(shown) > 1:  # the legend has the names
            for trace in drawn["data"]:
                if trace["meta"]["role"] == "best":
                    trace["mode"] = "markers"
        where = panel_label(panel.model, panel.forget_fraction)
        cells[(i + 1, 1) if _is_narrow(width) else location] = where, drawn
    methods = {trajectory.family for panel in shown for trajectory in panel.trajectories}
    title = f"{headline.kept.plain_label} against {headline.forgotten.name}"
    if _is_narrow(width):
        legend = _legend(set(), table, style, symbols=True)
        return fit(cells, legend, width, title, aspect=_COLUMN_ASPECT)
    legend = _legend(methods, table, style, symbols=True)
    return fit(cells, legend, width, title)


def trajectories(
    table: Sequence[TableRow],
    metrics: Sequence[str] | None = None,
    *,
    every: Sequence[TableRow] | None = None,
    width: str | float | None = None,
    ends: Sequence[EarlyEnd] = (),
) -> go.Figure:
    """Draw metrics by epoch: a row per model and forget fraction, a column per metric.

    metrics  columns of `results.csv` (default: the headline's two, and two of the forget set)

    The other options are those of `pareto`. Raises: UnlearnbenchError for an unknown metric.
    """
    plan = table[0].schema.plan if table else None
    known = filled_columns((row.metrics for row in table), plan)
    metrics = _usual(table, known) if metrics is None else metrics
    for name in metrics:
        if name not in known:
            near = did_you_mean(name, known) or ";"
            raise UnlearnbenchError(
                f"metric {name!r} has no number in this table{near} there are {', '.join(known)}"
            )
    style = Style.of(table if every is None else every)
    is_narrow = _is_narrow(width)
    cols = 1 if is_narrow else len(metrics)
    lines = -(-len(metrics) // max(cols, 1))
    shown = panels(table, ends=ends)
    methods = {row.family for row in table if row.kind == "run"}
    right, aspect = float(_RIGHT), 0.6
    if is_narrow:
        labels = {row.method for row in table if row.kind == "run"}
        right = name_margin(labels, canvas(width).pixels)
        frame_width, _ = frame_of(width, aspect, right)
        aspect = max(aspect, NAME_LINE * (len(methods) + 1) / frame_width)
    cells: Cells = {}
    for i, panel in enumerate(shown):
        where = "" if len(shown) == 1 else f"<br>{panel.place}"
        for j, metric in enumerate(metrics):
            label = panel.rows[0].schema.column(metric).label + where
            drawn = curves(panel, metric, style)
            if is_narrow:
                name_lines(drawn, panel, style, frame_of(width, aspect, right))
            cells[i * lines + j // cols + 1, j % cols + 1] = label, drawn
    legend = _legend(set() if is_narrow else methods, table, style, symbols=False)
    unit = unit_of_rows(table)
    title = f"Forgetting, {unit} by {unit}"
    return fit(cells, legend, width, title, aspect=aspect, right=right)


def _usual(table: Sequence[TableRow], known: Sequence[str]) -> list[str]:
    headline = headline_of_rows(table)
    two = [item for item in (headline.kept.column, headline.forgotten.column) if item in known]
    if not table:
        return two
    schema = table[0].schema
    forget = schema.sets("forget")
    further = [n for n in known if n not in two and schema.column(n).set in forget]
    return [*two, *further[:_OF_FORGET_SET]]


def _legend(
    methods: set[str], table: Sequence[TableRow], style: Style, *, symbols: bool
) -> list[go.Scatter]:
    """Make the legend's entries: methods, and dashes of learning rates where they differ."""
    rates = sorted({r.learning_rate for r in table if r.learning_rate is not None})
    differ = len({style.dashes[rate] for rate in rates}) > 1
    entries: list[Figure] = [
        {
            "name": family,
            "mode": "lines+markers" if symbols else "lines",
            "line": {"color": style.colour(family), "width": 2.5},
            "marker": {"symbol": style.shape(family), "size": 8, "color": style.colour(family)},
            "legendgroup": family,  # a click hides the method everywhere
        }
        for family in sorted(methods)
    ]
    entries += [
        {
            "name": f"{'learning ' if methods else ''}rate {rate_text(rate)}",
            "mode": "lines",
            "line": {"color": INK, "width": 1.6, "dash": style.dashes[rate]},
            "legendgroup": f"rate {rate_text(rate)}",  # entries of one group are below each other
        }
        for rate in (rates if differ else ())
    ]
    return [
        go.Scatter(x=[None], y=[None], meta=meta("legend"), showlegend=True, **entry)
        for entry in entries
    ]


def _inches(width: str | float | None) -> float | None:
    inches = WIDTHS.get(str(width), width)
    if isinstance(inches, str) or not (inches is None or 1 <= inches <= 30):
        raise UnlearnbenchError(f"width {width!r}: give {', '.join(WIDTHS)}, or 1 to 30 inches")
    return inches


def _is_narrow(width: str | float | None) -> bool:
    """True if panels are below each other."""
    return (_inches(width) or _NARROW) < _NARROW


@dataclass(frozen=True)
class Canvas:
    """The size of a figure."""

    pixels: float
    """Width in the pixels of a screen, with a font of 12."""
    inches: float | None
    """Width in print; None for a screen."""
    meta: Mapping[str, Any]
    """Scale and dots per inch of its files, see `export.save`."""


def canvas(width: str | float | None, on_screen: float = 760) -> Canvas:
    """Return the size of a figure.

    Args:
        width: `column`, `text`, or inches in print, with fonts of 8 or 9 points; None for a screen.
        on_screen: Pixels for a screen.

    Raises:
        UnlearnbenchError: For a width outside of what can be drawn.
    """
    inches = _inches(width)
    points = _COLUMN_POINTS if _is_narrow(width) else _POINTS
    pixels = on_screen if inches is None else inches * 96 * _POINTS / points
    scale = {"scale": points / _POINTS, "dpi": None if inches is None else _DPI}
    return Canvas(pixels, inches, scale)


def frame_of(
    width: str | float | None, aspect: float, right: float = _RIGHT
) -> tuple[float, float]:
    """Return width and height in pixels of the only cell of a line, as `fit` lays it out."""
    wide = canvas(width).pixels - _LEFT - right
    return wide, aspect * wide


def fit(
    cells: Cells,
    legend: Sequence[go.Scatter],
    width: str | float | None,
    title: str,
    *,
    aspect: float = 0.6,
    right: float = _RIGHT,
) -> go.Figure:
    """Join figures into one of a width, with a legend below all of them.

    width   `column`, `text`, or inches in print, with fonts of 8 or 9 points; None for a screen
    title   for a screen; in print a caption has it
    aspect  height of a cell by its width
    right   pixels to the right of the cells

    Raises: UnlearnbenchError for a width outside of what can be drawn.
    """
    rows, cols = (max([cell[i] for cell in cells], default=1) for i in (0, 1))
    places = [(i, j) for i in range(1, rows + 1) for j in range(1, cols + 1)]
    titles = [cells[location][0] if location in cells else "" for location in places]
    second = _LINE * any("<br>" in item for item in titles)
    gap, on_screen = _GAP + second, 760 if cols <= 1 else 380 * cols
    made = canvas(width, on_screen)
    pixels = made.pixels
    title = title if made.inches is None else ""
    inside = aspect * (pixels - _LEFT - right) / cols * rows + gap * (rows - 1)
    figure: Any = make_subplots(
        rows=rows,
        cols=cols,
        subplot_titles=titles,
        horizontal_spacing=0.28 / cols**1.3,
        vertical_spacing=gap / inside,
    )
    figure.update_annotations(font={"size": 13, "color": INK})
    for number, location in enumerate(places, start=1):
        _put(figure, cells.get(location), location, "" if number == 1 else str(number), rows)
    figure.add_traces(legend)
    names = [t.name or "" for t in figure.data if t.showlegend is not False]
    lines = -(-sum(60 + 7 * len(name) for name in names) // int(pixels - 110))
    top, foot = (64 if title else 30) + second, 56 + 20 * lines
    figure.update_layout(
        template=TEMPLATE,
        title_text=title,
        width=round(pixels),
        height=round(top + inside + foot),
        margin={"l": _LEFT, "r": right, "t": top, "b": foot},
        legend_y=-46 / inside,
        meta=made.meta,
    )
    return figure


def _put(
    figure: Any, cell: tuple[str, Figure] | None, location: tuple[int, int], number: str, rows: int
) -> None:
    """Put a figure's traces, axes, levels and notes into a cell."""
    at = dict(zip(("row", "col"), location, strict=True))
    if cell is None:
        figure.update_xaxes(visible=False, **at)
        figure.update_yaxes(visible=False, **at)
        return
    data, layout = cell[1]["data"], cell[1]["layout"]
    for trace in data:
        group = trace["meta"]["family"] or trace["meta"]["role"]
        figure.add_trace(trace | {"legendgroup": group}, **at)
    # Axis titles only below the last row and beside the first column.
    x_title = layout["xaxis"]["title"] if location[0] == rows else None
    y_title = layout["yaxis"].get("title") if location[1] == 1 else None
    figure.update_xaxes(**layout["xaxis"] | {"title": x_title}, **at)
    figure.update_yaxes(**layout["yaxis"] | {"title": y_title}, **at)
    for kind, add in (("shapes", figure.add_shape), ("annotations", figure.add_annotation)):
        for item in layout.get(kind, ()):
            refs = {
                f"{axis}ref": f"{axis}{number}{' domain' * (item.get(f'{axis}ref') == 'paper')}"
                for axis in ("x", "y")
            }
            add(**item | refs)
