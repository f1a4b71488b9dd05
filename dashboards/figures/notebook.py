"""Figures for a notebook or a paper: the page's panels side by side, with a title and a legend.

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

from unlearnbench.analysis.best_settings import headline_of_rows, panel_label
from unlearnbench.api.benchmark import Headline, split_order
from unlearnbench.errors import UnlearnbenchError, did_you_mean
from unlearnbench.evaluation.benchmark_schema import filled_columns
from unlearnbench.results.table import TableRow

from ..formatting import rate_text
from .curve_plot import curves
from .tradeoff_axes import INK, MUTED
from .tradeoff_data import panels
from .tradeoff_plot import Style, draw, meta

FONT = "Helvetica, Arial, sans-serif"
GRID = "#e8eaed"
FRAME: Mapping[str, Any] = {
    "template": go.layout.Template(),
    "font": {"family": FONT, "color": INK, "size": 12},
    "plot_bgcolor": "#ffffff",
    "paper_bgcolor": "#ffffff",
}
"""What all figures for paper have."""
WIDTHS = {"column": (3.25, 8.0), "text": (6.75, 9.0)}
"""Inches and points of a column and of the text, in the usual templates of conferences."""
_POINTS = 9.0
"""Points of the font of a screen, at 96 pixels an inch."""
_DPI = 300
"""Dots per inch of a PNG for print."""
_NARROW = 5.0
"""Inches below which panels are below each other."""
_OF_FORGET_SET = 2
"""Metrics of the forget set that are drawn where none are named."""

Cells = Mapping[tuple[int, int], Any]
"""Panels by row and column, from 1."""


@dataclass(frozen=True)
class Size:
    """Size of a figure."""

    inches: float | None = None
    """Width in print; None for a screen."""
    points: float = _POINTS
    legend: bool = True

    @classmethod
    def of(
        cls,
        width: str | float | None = None,
        font_size: float | None = None,
        *,
        legend: bool = True,
    ) -> Size:
        """Read what was asked for.

        width      `column`, `text`, or inches in print; None for a screen
        font_size  points (1/72 inch); default: 9, in a column 8

        Raises: UnlearnbenchError for a width or size outside of what can be drawn.
        """
        inches, points = WIDTHS.get(str(width), (width, _POINTS))
        if isinstance(inches, str) or not (inches is None or 1 <= inches <= 30):
            raise UnlearnbenchError(f"width {width!r}: give {', '.join(WIDTHS)}, or 1 to 30 inches")
        if font_size is not None and not 4 <= font_size <= 40:
            raise UnlearnbenchError(f"font size {font_size!r}: give 4 to 40 points")
        return cls(inches, points if font_size is None else font_size, legend)

    @property
    def narrow(self) -> bool:
        """True if panels are below each other."""
        return self.inches is not None and self.inches < _NARROW

    def pixels(self, columns: int) -> float:
        """Width of the figure in pixels of a screen."""
        if self.inches is None:
            return 760 if columns <= 1 else 380 * columns
        return self.inches * 96 * _POINTS / self.points


def pareto(
    table: Sequence[TableRow],
    *,
    every: Sequence[TableRow] | None = None,
    title: str | None = None,
    **size: Any,
) -> go.Figure:
    """Draw what is kept against what is forgotten: rows are models, columns splits.

    table  `Results.read(folder).rows`, or a part of them
    every  the whole table, whose colours and shapes a part of it keeps (default: this part)
    title  default: the names of both numbers; none at a width in print
    size   width, font_size and legend, see `Size.of`

    Raises: UnlearnbenchError for a table without the benchmark's numbers.
    """
    headline, of_size = _headline(table), Size.of(**size)
    style = Style.of(table if every is None else every)
    shown = panels(table)
    models = list(dict.fromkeys(p.model for p in shown))
    fractions = sorted({p.forget_fraction for p in shown}, key=split_order)
    places = [(models.index(p.model) + 1, fractions.index(p.forget_fraction) + 1) for p in shown]
    rows, cols = len(models), len(fractions)
    if of_size.narrow:
        places, rows, cols = [(i, 1) for i, _ in enumerate(shown, start=1)], len(shown), 1
    placed = dict(zip(places, shown, strict=True))
    cells = {at: draw(panel, style) for at, panel in placed.items()}
    titles = {at: panel_label(one.model, one.forget_fraction) for at, one in placed.items()}
    figure = compose(cells, titles, rows, cols)
    if len(shown) > 1:  # the legend has the names
        figure.update_traces(mode="markers", selector=lambda t: t.meta["role"] == "best")
    listed = {t.meta["family"]: t for t in figure.data if t.meta["role"] == "trajectory"}
    figure.add_traces([_entry(name, style, style.shape(name)) for name in sorted(listed)])
    figure.add_traces(_rates(table, style))
    if title is None and of_size.inches is None:
        title = f"{headline.kept.plain_label} against {headline.forgotten.name}"
    return fit(figure, of_size, title, rows, cols)


def trajectories(
    table: Sequence[TableRow],
    metrics: Sequence[str] | None = None,
    *,
    every: Sequence[TableRow] | None = None,
    title: str | None = None,
    **size: Any,
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
            near = did_you_mean(name, known)
            raise UnlearnbenchError(
                f"metric {name!r} has no number in this table{near}; those that have: "
                f"{', '.join(known)}"
            )
    style, of_size = Style.of(table if every is None else every), Size.of(**size)
    cols = min(len(metrics), 2) if of_size.narrow else len(metrics)
    lines = -(-len(metrics) // max(cols, 1))
    places = list(dict.fromkeys((r.model, r.forget_fraction) for r in table))
    cells: dict[tuple[int, int], Any] = {}
    titles: dict[tuple[int, int], str] = {}
    for i, place in enumerate(places):
        rows = [r for r in table if (r.model, r.forget_fraction) == place]
        where = "" if len(places) == 1 else f"<br>{panel_label(*place)}"
        for j, metric in enumerate(metrics):
            cell = i * lines + j // cols + 1, j % cols + 1
            cells[cell] = go.Figure(curves(rows, metric, style))
            titles[cell] = rows[0].schema.column(metric).label + where
    figure = compose(cells, titles, len(places) * lines, cols)
    listed = {row.family for row in table if row.kind == "run"}
    figure.add_traces([_entry(name, style) for name in sorted(listed)])
    figure.add_traces(_rates(table, style))
    if title is None and of_size.inches is None:
        title = "Forgetting, epoch by epoch"
    return fit(figure, of_size, title, len(places) * lines, cols)


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
    for number, place in enumerate(places, start=1):
        if place not in cells:
            figure.update_xaxes(visible=False, row=place[0], col=place[1])
            figure.update_yaxes(visible=False, row=place[0], col=place[1])
            continue
        _put(figure, cells[place], place, "" if number == 1 else str(number))
    # Axis titles only below the last row and beside the first column.
    for i, j in places:
        if i < rows:
            figure.update_xaxes(title_text="", row=i, col=j)
        if j > 1:
            figure.update_yaxes(title_text="", row=i, col=j)
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


def _entry(family: str, style: Style, shape: str | None = None) -> go.Scatter:
    """Make a method's entry of the legend; a click hides the method everywhere."""
    colour = style.colour(family)
    return _legend(
        mode="lines+markers" if shape else "lines",
        name=family,
        line={"color": colour, "width": 2.5},
        marker={"symbol": shape, "size": 8, "color": colour},
        legendgroup=family,
    )


def _legend(**options: Any) -> go.Scatter:
    return go.Scatter(x=[None], y=[None], meta=meta("legend"), showlegend=True, **options)


def _rates(table: Sequence[TableRow], style: Style) -> list[go.Scatter]:
    """Make the legend's entries of dashes, where they differ."""
    rates = sorted({r.learning_rate for r in table if r.learning_rate is not None})
    return [
        _legend(
            mode="lines",
            name=f"learning rate {rate_text(rate)}",
            line={"color": INK, "width": 1.6, "dash": style.dashes[rate]},
        )
        for rate in (rates if len({style.dashes[rate] for rate in rates}) > 1 else ())
    ]


def fit(figure: Any, size: Size, title: str | None, rows: int, cols: int) -> go.Figure:
    """Set the style, the size and the title of a figure, with its legend below all panels."""
    if not size.legend:
        figure.data = [one for one in figure.data if (one.meta or {}).get("role") != "legend"]
        figure.update_traces(showlegend=False)
    width = size.pixels(cols)
    names = [t.name or "" for t in figure.data if t.showlegend is not False]
    lines = -(-sum(60 + 7 * len(name) for name in names) // int(width - 110))
    top = 64 if title else 30
    inside = 0.75 * (width - 70) / max(cols, 1) * max(rows, 1)
    axis = {"gridcolor": GRID, "tickfont": {"size": 11, "color": MUTED}, "title_font_size": 12}
    figure.update_xaxes(**axis, title_standoff=6)
    figure.update_yaxes(**axis)
    for note in figure.layout.annotations:
        if note.name is None:  # a panel's title
            note.font = {"size": 13, "color": INK}
    figure.update_layout(
        **FRAME,
        title={"text": title or "", "x": 0.01, "y": 1, "yanchor": "top", "pad": {"t": 12}},
        title_font={"size": 16, "color": INK},
        width=round(width),
        height=round(top + inside + 56 + 20 * lines),
        margin={"l": 60, "r": 12, "t": top, "b": 56 + 20 * lines},
        hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": -46 / inside, "yanchor": "top"}
        | {"tracegroupgap": 0},
        meta={"scale": size.points / _POINTS, "dpi": None if size.inches is None else _DPI},
    )
    return figure
