"""Figures for a notebook or a paper: the page's panels side by side, with a title and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.analysis.best_settings import headline_of_rows, panel_label
from unlearnbench.api.benchmark import Headline, split_order
from unlearnbench.errors import UnlearnbenchError, did_you_mean
from unlearnbench.evaluation.columns import filled_columns
from unlearnbench.results.table import TableRow

from ..formatting import rate_text
from .curve_plot import curves
from .label_placement import COVERED, MEDIUM, Size
from .palette import faded
from .print_size import SCREEN_FONT, PrintSize, fit
from .tradeoff_axes import INK, MUTED
from .tradeoff_data import panels
from .tradeoff_plot import Style, draw, meta

FONT = "Helvetica, Arial, sans-serif"
GRID = "#e8eaed"
_OF_FORGET_SET = 2
"""Metrics of the forget set that are drawn where none are named."""
_LEGEND, _ENTRY = 160, 20
"""Pixels: width of the legend, height of a line of it."""
_COVERED = 0.1
"""Largest share of a name that may be overlapped in a column: the legend has those left out."""
_ABOVE, _BELOW, _LEGEND_LINE = 70, 100, 22
"""Pixels above and below all panels, and height of a legend below them."""

Cells = Mapping[tuple[int, int], Any]
"""Panels by row and column, from 1."""


def pareto(
    table: Sequence[TableRow],
    *,
    title: str | None = None,
    width: str | float | None = None,
    font_size: float | None = None,
    legend: bool = True,
) -> go.Figure:
    """Draw what is kept against what is forgotten: rows are models, columns splits.

    table      `build_report(folder).rows`, or a part of them
    title      default: the names of both numbers; none at a width in print
    width, font_size, legend  see `PrintSize.of`

    Raises: UnlearnbenchError for a table without the benchmark's numbers.
    """
    headline = _headline(table)
    size = PrintSize.of(width, font_size, legend=legend)
    if title is None and size is not None and size.width is not None:
        title = ""
    if title is None:
        title = f"{headline.kept.plain_label} against {headline.forgotten.name}"
    style = Style.of(table)
    shown = panels(table)
    models = list(dict.fromkeys(p.model for p in shown))
    fractions = sorted({p.forget_fraction for p in shown}, key=split_order)
    rows, cols = len(models), len(fractions)
    if stacked := size is not None and size.narrow:
        rows, cols = len(shown), 1
    cells: dict[tuple[int, int], Any] = {}
    titles: dict[tuple[int, int], str] = {}
    for number, panel in enumerate(shown, start=1):
        place = models.index(panel.model) + 1, fractions.index(panel.forget_fraction) + 1
        if stacked:
            place = number, 1
        cells[place] = draw(
            panel, style, _room(size, cols), covered=_COVERED if stacked else COVERED
        )
        if len(shown) > 1 and (
            size is None or (size.legend and not size.narrow)
        ):  # the legend has the names
            for trace in cells[place].data:
                if trace.meta["role"] == "best":
                    trace.mode = "markers"
        titles[place] = panel_label(panel.model, panel.forget_fraction)
    figure = compose(cells, titles, rows, cols)
    listed = _legend(table, style, _marks(figure))
    if size is not None and size.narrow:
        named = _named_beside(figure)
        listed = [one for one in listed if one.name not in named]
    figure.add_traces(listed)
    apply_layout(figure, title, rows, cols, size=(380, 350))
    return figure if size is None else fit(figure, size, rows, cols)


def _named_beside(figure: Any) -> set[str]:
    """Methods whose names stand beside their best points, in every panel that has one."""
    rings = [t for t in figure.data if t.meta["role"] == "best"]
    without = {t.meta["family"] for t in rings if "text" not in t.mode}
    return {t.meta["family"] for t in rings} - without


def _room(size: PrintSize | None, columns: int) -> Size:
    """Plot area of a panel, in pixels of a font for screens: names are placed by it."""
    if size is None or size.width is None:
        return MEDIUM
    width, height = size.plot(columns)
    return width * SCREEN_FONT / size.font, height * SCREEN_FONT / size.font


def trajectories(
    table: Sequence[TableRow],
    metrics: Sequence[str] | None = None,
    *,
    title: str | None = None,
    width: str | float | None = None,
    font_size: float | None = None,
    legend: bool = True,
) -> go.Figure:
    """Draw metrics by epoch: a row per model and forget fraction, a column per metric.

    metrics  columns of `results.csv` (default: the headline's two, and two of the forget set)
    title    default: `Forgetting, epoch by epoch`; none at a width in print
    width, font_size, legend  see `PrintSize.of`

    Raises: UnlearnbenchError for an unknown one.
    """
    plan = table[0].schema.plan if table else None
    known = filled_columns((row.metrics for row in table), plan)
    metrics = _usual(table, known) if metrics is None else metrics
    for name in metrics:
        if name not in known:
            near = did_you_mean(name, known)
            raise UnlearnbenchError(
                f"metric {name!r} has no number in this table{near}; those that have: "
                f"{', '.join(known)}"
            )
    style, size = Style.of(table), PrintSize.of(width, font_size, legend=legend)
    if title is None:
        in_print = size is not None and size.width is not None
        title = "" if in_print else "Forgetting, epoch by epoch"
    per_row = min(len(metrics), 2) if size is not None and size.narrow else len(metrics)
    lines = -(-len(metrics) // max(per_row, 1))
    places = list(dict.fromkeys((r.model, r.forget_fraction) for r in table))
    cells: dict[tuple[int, int], Any] = {}
    titles: dict[tuple[int, int], str] = {}
    for i, place in enumerate(places, start=1):
        rows = [r for r in table if (r.model, r.forget_fraction) == place]
        for j, metric in enumerate(metrics):
            cell = (i - 1) * lines + j // per_row + 1, j % per_row + 1
            cells[cell] = go.Figure(curves(rows, metric, style))
            where = "" if len(places) == 1 else f"<br>{panel_label(*place)}"
            titles[cell] = rows[0].schema.column(metric).label + where
    count = len(places) * lines
    figure = compose(cells, titles, count, per_row)
    figure.add_traces(_legend(table, style, {}))
    apply_layout(figure, title, count, per_row, size=(330, 270))
    return figure if size is None else fit(figure, size, count, per_row)


def _headline(table: Sequence[TableRow]) -> Headline:
    """Look up the headline. Raises: UnlearnbenchError for a table without its numbers."""
    found = headline_of_rows(table)
    if table and not table[0].metrics.keys() & {found.kept.column, found.forgotten.column}:
        raise UnlearnbenchError(
            f"a table without {found.kept.column} and {found.forgotten.column}: its benchmark is "
            "not installed here; give the sweep's folder, whose records have it, or name columns"
        )
    return found


def _usual(table: Sequence[TableRow], known: Sequence[str]) -> list[str]:
    headline = _headline(table)
    two = [one for one in (headline.kept.column, headline.forgotten.column) if one in known]
    if not table:
        return two
    schema = table[0].schema
    forget = schema.sets("forget")
    further = [n for n in known if n not in two and schema.column(n).set in forget]
    return [*two, *further[:_OF_FORGET_SET]]


def compose(cells: Cells, titles: Mapping[tuple[int, int], str], rows: int, cols: int) -> go.Figure:
    """Join figures into one: their traces, axes, levels and notes, each in its cell."""
    places = [(i, j) for i in range(1, rows + 1) for j in range(1, cols + 1)]
    figure: Any = make_subplots(
        rows=max(rows, 1),
        cols=max(cols, 1),
        subplot_titles=[titles.get(place, "") for place in places],
        horizontal_spacing=0.28 / max(cols, 1) ** 1.3,
        vertical_spacing=0.2 / max(rows, 1),
    )
    for note in figure.layout.annotations:
        note.font = {"size": 13, "color": INK}
    for number, place in enumerate(places, start=1):
        if place not in cells:
            figure.update_xaxes(visible=False, row=place[0], col=place[1])
            figure.update_yaxes(visible=False, row=place[0], col=place[1])
            continue
        _put(figure, cells[place], place, "" if number == 1 else str(number))
    return figure


def _put(figure: go.Figure, cell: Any, place: tuple[int, int], number: str) -> None:
    row, col = place
    for trace in cell.data:
        trace.legendgroup = trace.meta["family"] or trace.meta["role"]
        figure.add_trace(trace, row=row, col=col)
    for name, update in (("xaxis", figure.update_xaxes), ("yaxis", figure.update_yaxes)):
        update(**cell.layout[name].to_plotly_json(), row=row, col=col)
    for kind, add in (("shapes", figure.add_shape), ("annotations", figure.add_annotation)):
        for thing in cell.layout[kind]:
            options = thing.to_plotly_json()
            for axis in ("x", "y"):
                inside = options.get(f"{axis}ref", axis) == axis
                options[f"{axis}ref"] = f"{axis}{number}" + ("" if inside else " domain")
            add(**options)


def _marks(figure: Any) -> dict[str, str]:
    """Look up each method's shape as drawn."""
    lines = [t for t in figure.data if t.meta["role"] == "trajectory"]
    shapes = {t.meta["family"]: t.marker.symbol for t in lines}
    return {name: shape if isinstance(shape, str) else shape[0] for name, shape in shapes.items()}


def _legend(table: Sequence[TableRow], style: Style, shapes: Mapping[str, str]) -> list[go.Scatter]:
    """Make the legends of colours, shapes, dashes and marks; a click hides a method everywhere."""
    found: list[go.Scatter] = []
    for family in style.colours:
        colour = style.colour(family)
        shape = {"symbol": shapes[family], "size": 8, "color": colour} if family in shapes else None
        found.append(_entry(family, family, "legend", {"color": colour, "width": 2.5}, shape))
    rates = sorted({r.learning_rate for r in table if r.learning_rate is not None})
    if len(rates) > 1:
        found += [
            _entry(f"rate {rate_text(r)}", f"rate {r}", "legend2", _dashed(style.dashes[r]))
            for r in rates
        ]
    if shapes:
        front = {"color": faded(MUTED, 0.55), "width": 1.5}
        found.append(_entry("Pareto front", "front", "legend3", front))
        found += [
            _entry(name, name, "legend3", None, {"symbol": symbol, "size": size, "color": INK})
            for name, symbol, size in (
                ("last epoch: large", "circle", 10),
                ("best of its method", "circle-open", 12),
            )
        ]
    return found


def _dashed(dash: str) -> dict[str, Any]:
    return {"color": INK, "width": 1.6, "dash": dash}


def _entry(
    name: str, group: str, legend: str, line: Any, marker: dict[str, Any] | None = None
) -> go.Scatter:
    return go.Scatter(
        x=[None],
        y=[None],
        mode="+".join(m for m, options in (("lines", line), ("markers", marker)) if options),
        name=name,
        line=line,
        marker=marker,
        legend=legend,
        legendgroup=group,
        meta=meta("legend"),
        showlegend=True,
    )


def apply_layout(
    figure: Any, title: str, rows: int, cols: int, *, size: tuple[int, int]
) -> go.Figure:
    """Set title, size, grid and legends: methods to the right, dashes and marks below.

    size  of a panel in pixels; a single one is larger
    """
    width, height = (700, 480) if rows * cols <= 1 else size
    listed = sum(t.showlegend is True and t.legend == "legend" for t in figure.data)
    inside = max(height * max(rows, 1), _ENTRY * listed)
    axis: dict[str, Any] = {
        "gridcolor": GRID,
        "tickfont": {"size": 11, "color": MUTED},
        "title_font_size": 12,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    # Axis titles only below the last row and beside the first column.
    for i in range(1, rows + 1):
        for j in range(1, cols + 1):
            if i < rows:
                figure.update_xaxes(title_text="", row=i, col=j)
            if j > 1:
                figure.update_yaxes(title_text="", row=i, col=j)
    whole = _ABOVE + inside + _BELOW
    below = {
        **{"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "bottom", "yref": "container"},
        "title": {"font": {"size": 12}},
    }
    figure.update_layout(
        template=go.layout.Template(),
        title={
            "text": title,
            "x": 0.01,
            "y": 0.985,
            "yanchor": "top",
            "font": {"size": 17, "color": INK},
        },
        font={"family": FONT, "color": INK, "size": 12},
        width=_LEGEND + width * max(cols, 1),
        height=whole,
        margin={"l": 66, "r": _LEGEND, "t": _ABOVE, "b": _BELOW - 2 * _LEGEND_LINE},
        plot_bgcolor="#ffffff",
        paper_bgcolor="#ffffff",
        hovermode="closest",
        legend={"x": 1.01, "y": 1, "font": {"size": 12}, "tracegroupgap": 0},
        legend2=below | {"y": (_LEGEND_LINE + 8) / whole},
        legend3=below | {"y": 8 / whole},
    )
    return figure
