"""Figures for a notebook or a paper: the figures of the page in a grid, with a title and a legend.

`pareto` and `trajectories` draw the cells of the grid, and `fit` lays them out.

Every figure is laid out in the pixels of a screen, with a font of 12. A figure for print is laid
out as if the paper had that font, and its file is scaled down to the font size of the paper.
Therefore marks, lines and legends keep their proportions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.analysis.best_settings import Choice
from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.settings import headline_of_rows, panel_label, unit_of_rows
from unlearnbench.api.benchmark import split_order
from unlearnbench.base.errors import UnlearnbenchError, did_you_mean
from unlearnbench.evaluation.benchmark_schema import filled_columns
from unlearnbench.results.table import TableRow

from ..formatting import rate_text
from .curve_plot import NAME_LINE, curves, name_lines, name_margin
from .marks import Figure
from .palette import GRID, INK, MUTED, Style, meta
from .tradeoff_data import TradeOffPanel, panels
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
_POINTS = 9.0
"""Font size in points of a figure as wide as the text: 12 pixels at 96 pixels an inch."""
_COLUMN_POINTS = 8.0
"""Font size in points of a figure as wide as a column."""
_DPI = 300
"""Dots per inch of a PNG for print."""
_NARROW = 5.0
"""Inches below which all panels stand in one column."""
_GAP = 52
"""Pixels between rows of panels, for ticks and titles."""
_LINE = 18
"""Pixels of a title's second line."""
_LEFT = 60
"""Pixels to the left of all cells."""
_RIGHT = 12
"""Pixels to the right of all cells."""
_ASPECT = 0.6
"""Height of a cell by its width."""
_COLUMN_ASPECT = 0.85
"""Height by width of a trade-off in a column. It is higher, because names stand at the marks."""
_OF_FORGET_SET = 2
"""How many metrics of the forget set are drawn if the caller names none."""

Cells = dict[tuple[int, int], tuple[str, Figure]]
"""Titles and figures by row and column, which count from 1."""


def pareto(
    table: Sequence[TableRow],
    *,
    every: Sequence[TableRow] | None = None,
    width: str | float | None = None,
    choices: Sequence[Choice] = (),
    ends: Sequence[EarlyEnd] = (),
) -> go.Figure:
    """Draw what is kept against what is forgotten: rows are models, columns splits.

    Args:
        table: `Results.read(folder).rows`, or a part of them.
        every: The whole table, if `table` is a part that keeps the colours and shapes of the whole.
        width: See `canvas`.
        choices: `Results.choices`, which are ringed in place of the best of all settings.
        ends: `Results.ends`: runs that ended early.

    Raises:
        UnlearnbenchError: For a width outside of what can be drawn.
    """
    headline = headline_of_rows(table)
    title = f"{headline.kept.plain_label} against {headline.forgotten.name}"
    style = Style.of(table if every is None else every)
    shown = panels(table, choices, ends)

    if _is_narrow(width):
        # Names stand at the marks, so the legend has no methods.
        cells: Cells = {}
        for row, panel in enumerate(shown, start=1):
            figure = draw(panel, style)
            name_marks(figure, panel, style, frame_of(width, _COLUMN_ASPECT))
            cells[row, 1] = panel_label(panel.model, panel.forget_fraction), figure
        legend = _legend(set(), table, style, symbols=True)
        return fit(cells, legend, width, title, aspect=_COLUMN_ASPECT)

    cells = _grid_of_panels(shown, style)
    methods = {trajectory.family for panel in shown for trajectory in panel.trajectories}
    return fit(cells, _legend(methods, table, style, symbols=True), width, title)


def _grid_of_panels(shown: Sequence[TradeOffPanel], style: Style) -> Cells:
    """Draw the trade-off of each panel in the row of its model and the column of its split."""
    models = list(dict.fromkeys(panel.model for panel in shown))
    splits = sorted({panel.forget_fraction for panel in shown}, key=split_order)
    cells: Cells = {}
    for panel in shown:
        figure = draw(panel, style)
        if len(shown) > 1:
            # The legend has the names, for which small panels lack space.
            for trace in figure["data"]:
                if trace["meta"]["role"] == "best":
                    trace["mode"] = "markers"
        row = models.index(panel.model) + 1
        column = splits.index(panel.forget_fraction) + 1
        cells[row, column] = panel_label(panel.model, panel.forget_fraction), figure
    return cells


def trajectories(
    table: Sequence[TableRow],
    metrics: Sequence[str] | None = None,
    *,
    every: Sequence[TableRow] | None = None,
    width: str | float | None = None,
    ends: Sequence[EarlyEnd] = (),
) -> go.Figure:
    """Draw metrics by epoch: a row per model and forget fraction, a column per metric.

    Args:
        table: See `pareto`.
        metrics: Columns of `results.csv`. The default is the two of the headline, and two more of
            the forget set.
        every: See `pareto`.
        width: See `canvas`.
        ends: See `pareto`.

    Raises:
        UnlearnbenchError: For a metric without a number in the table, or a width outside of what
            can be drawn.
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
    shown = panels(table, ends=ends)
    methods = {row.family for row in table if row.kind == "run"}
    is_narrow = _is_narrow(width)
    right = float(_RIGHT)
    aspect = _ASPECT
    if is_narrow:
        # Names stand beside the lines: they need a margin, and a line of text each.
        labels = {row.method for row in table if row.kind == "run"}
        right = name_margin(labels, canvas(width).pixels)
        frame_width, _ = frame_of(width, aspect, right)
        aspect = max(aspect, NAME_LINE * (len(methods) + 1) / frame_width)

    cells: Cells = {}
    for panel_index, panel in enumerate(shown):
        place = "" if len(shown) == 1 else f"<br>{panel.place}"
        for metric_index, metric in enumerate(metrics):
            figure = curves(panel, metric, style)
            if is_narrow:
                name_lines(figure, panel, style, frame_of(width, aspect, right))
                location = (panel_index * len(metrics) + metric_index + 1, 1)
            else:
                location = (panel_index + 1, metric_index + 1)
            cells[location] = panel.rows[0].schema.column(metric).label + place, figure

    legend = _legend(set() if is_narrow else methods, table, style, symbols=False)
    unit = unit_of_rows(table)
    title = f"Forgetting, {unit} by {unit}"
    return fit(cells, legend, width, title, aspect=aspect, right=right)


def _usual(table: Sequence[TableRow], known: Sequence[str]) -> list[str]:
    """Return the columns to draw if the caller names none."""
    headline = headline_of_rows(table)
    of_headline = [
        column for column in (headline.kept.column, headline.forgotten.column) if column in known
    ]
    if not table:
        return of_headline

    schema = table[0].schema
    forget_sets = schema.sets("forget")
    of_forget_sets = [
        column
        for column in known
        if column not in of_headline and schema.column(column).set in forget_sets
    ]
    return [*of_headline, *of_forget_sets[:_OF_FORGET_SET]]


def _legend(
    methods: set[str], table: Sequence[TableRow], style: Style, *, symbols: bool
) -> list[go.Scatter]:
    """Make the legend's entries: methods, then dashes of learning rates if these differ.

    Args:
        methods: Methods with an entry; none if their names stand in the figure.
        table: Rows, whose learning rates have entries.
        style: Colours, shapes and dashes.
        symbols: Whether the entry of a method has the shape of its marks.
    """
    entries = [_method_entry(family, style, symbols=symbols) for family in sorted(methods)]
    rates = sorted({row.learning_rate for row in table if row.learning_rate is not None})
    if len({style.dashes[rate] for rate in rates}) > 1:
        # Without methods in the legend, the figure is narrow, and the name is short.
        noun = "learning rate" if methods else "rate"
        entries += [_rate_entry(rate, noun, style) for rate in rates]
    return entries


def _method_entry(family: str, style: Style, *, symbols: bool) -> go.Scatter:
    colour = style.colour(family)
    return _legend_entry(
        name=family,
        mode="lines+markers" if symbols else "lines",
        line={"color": colour, "width": 2.5},
        marker={"symbol": style.shape(family), "size": 8, "color": colour},
        # The traces of the method have the same group, so that a click hides them in all panels.
        legendgroup=family,
    )


def _rate_entry(rate: float, noun: str, style: Style) -> go.Scatter:
    return _legend_entry(
        name=f"{noun} {rate_text(rate)}",
        mode="lines",
        line={"color": INK, "width": 1.6, "dash": style.dashes[rate]},
        # Plotly would put entries of one group below each other.
        legendgroup=f"rate {rate_text(rate)}",
    )


def _legend_entry(**appearance: Any) -> go.Scatter:
    """Make a trace without points, which only the legend shows."""
    return go.Scatter(x=[None], y=[None], meta=meta("legend"), showlegend=True, **appearance)


def _inches(width: str | float | None) -> float | None:
    """Look up or check a width in print; None for a screen."""
    inches = WIDTHS.get(str(width), width)
    if isinstance(inches, str) or not (inches is None or 1 <= inches <= 30):
        raise UnlearnbenchError(f"width {width!r}: give {', '.join(WIDTHS)}, or 1 to 30 inches")
    return inches


def _is_narrow(width: str | float | None) -> bool:
    """Whether all panels stand in one column. Names then stand in the figure, not in the legend."""
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
    """Return width and height in pixels of a cell that has a line for itself, as in `fit`."""
    frame_width = canvas(width).pixels - _LEFT - right
    return frame_width, aspect * frame_width


def fit(
    cells: Cells,
    legend: Sequence[go.Scatter],
    width: str | float | None,
    title: str,
    *,
    aspect: float = _ASPECT,
    right: float = _RIGHT,
) -> go.Figure:
    """Join figures into one of a width, with a legend below all of them.

    Args:
        cells: Figures by row and column. A place without a figure stays empty.
        legend: Entries of the legend, see `_legend`.
        width: See `canvas`.
        title: Title on a screen. In print a caption has it.
        aspect: Height of a cell by its width.
        right: Pixels to the right of the cells.

    Raises:
        UnlearnbenchError: For a width outside of what can be drawn.
    """
    rows = max((row for row, _ in cells), default=1)
    cols = max((col for _, col in cells), default=1)
    places = [(row, col) for row in range(1, rows + 1) for col in range(1, cols + 1)]
    cell_titles = [cells[place][0] if place in cells else "" for place in places]
    second_line = _LINE if any("<br>" in cell_title for cell_title in cell_titles) else 0

    size = canvas(width, on_screen=760 if cols <= 1 else 380 * cols)
    title = title if size.inches is None else ""
    gap = _GAP + second_line
    inside = aspect * (size.pixels - _LEFT - right) / cols * rows + gap * (rows - 1)
    figure: Any = make_subplots(
        rows=rows,
        cols=cols,
        subplot_titles=cell_titles,
        horizontal_spacing=0.28 / cols**1.3,
        vertical_spacing=gap / inside,
    )
    figure.update_annotations(font={"size": 13, "color": INK})
    for number, place in enumerate(places, start=1):
        # Plotly calls the axes of the first cell "x" and "y", those of the second "x2" and "y2".
        axis_number = "" if number == 1 else str(number)
        _put(figure, cells.get(place), place, axis_number, rows)
    figure.add_traces(legend)

    names = [trace.name or "" for trace in figure.data if trace.showlegend is not False]
    # About 7 pixels a letter, and 60 for the symbol and the space between entries.
    legend_pixels = sum(60 + 7 * len(name) for name in names)
    legend_lines = -(-legend_pixels // int(size.pixels - 110))
    top = (64 if title else 30) + second_line
    foot = 56 + 20 * legend_lines
    figure.update_layout(
        template=TEMPLATE,
        title_text=title,
        width=round(size.pixels),
        height=round(top + inside + foot),
        margin={"l": _LEFT, "r": right, "t": top, "b": foot},
        legend_y=-46 / inside,
        meta=size.meta,
    )
    return figure


def _put(
    figure: Any,
    cell: tuple[str, Figure] | None,
    place: tuple[int, int],
    axis_number: str,
    rows: int,
) -> None:
    """Put a figure's traces, axes, levels and notes into a cell.

    Args:
        figure: The grid.
        cell: Title and figure; None for an empty cell.
        place: Row and column of the cell, which count from 1.
        axis_number: End of the names of the cell's axes: `2` for `x2` and `y2`.
        rows: Number of rows of the grid.
    """
    row, col = place
    if cell is None:
        figure.update_xaxes(visible=False, row=row, col=col)
        figure.update_yaxes(visible=False, row=row, col=col)
        return

    _, drawn = cell
    for trace in drawn["data"]:
        group = trace["meta"]["family"] or trace["meta"]["role"]
        figure.add_trace(trace | {"legendgroup": group}, row=row, col=col)

    # Only the last row has titles of x axes, and only the first column titles of y axes.
    layout = drawn["layout"]
    x_title = layout["xaxis"]["title"] if row == rows else None
    y_title = layout["yaxis"].get("title") if col == 1 else None
    figure.update_xaxes(**layout["xaxis"] | {"title": x_title}, row=row, col=col)
    figure.update_yaxes(**layout["yaxis"] | {"title": y_title}, row=row, col=col)

    for shape in layout.get("shapes", ()):
        figure.add_shape(**shape | _references_to_axes(shape, axis_number))
    for annotation in layout.get("annotations", ()):
        figure.add_annotation(**annotation | _references_to_axes(annotation, axis_number))


def _references_to_axes(placed: Figure, axis_number: str) -> dict[str, str]:
    """Tie a shape or an annotation to the axes of a cell.

    Positions relative to the figure (`paper`) become relative to the cell: `x2 domain`.
    """
    references: dict[str, str] = {}
    for axis in ("x", "y"):
        is_relative = placed.get(f"{axis}ref") == "paper"
        references[f"{axis}ref"] = f"{axis}{axis_number}{' domain' if is_relative else ''}"
    return references
