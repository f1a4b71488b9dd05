"""Figure of a meta-evaluation: each metric's value for every model, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.analysis.meta_evaluation import MetaEvaluation, MetricQuality
from unlearnbench.api.benchmark import split_percent

from ..formatting import signed
from .notebook import FRAME, GRID
from .palette import PALETTE, faded
from .tradeoff_axes import INK, MUTED

KNOWN, UNKNOWN = PALETTE[1][0], PALETTE[0][0]
_SCORES: tuple[tuple[str, str, str, Callable[[MetricQuality], float | None]], ...] = (
    ("overall", "diamond", PALETTE[3][0], lambda one: one.overall),
    ("Q, quantization", "triangle-up", PALETTE[2][0], lambda one: one.quantization.value),
    ("R, relearning", "triangle-down", PALETTE[4][0], lambda one: one.relearning.value),
)
_LINE, _HEAD, _FOOT = 26, 120, 60
"""Pixels: height of a metric, above and below all of them."""
_OFFSET = 0.16
"""Distance of the models that know from the metric's line, in lines, and of those that do not."""


def build(found: Sequence[MetaEvaluation]) -> go.Figure:
    """Draw a row of two panels for each split: values of the models, and faithfulness.

    Values are drawn from the lower to the upper bound of the metric's scale, or, where it has none,
    from the smallest to the largest value; the label at a point has the value itself. Controls
    stand below the metrics.
    """
    counts = [len(_lines(one)) for one in found]
    figure: Any = make_subplots(
        rows=len(found),
        cols=2,
        shared_yaxes=True,
        column_widths=[0.55, 0.45],
        horizontal_spacing=0.03,
        vertical_spacing=0.24 / max(len(found), 2),
        row_heights=[count / sum(counts) for count in counts],
        subplot_titles=[title for one in found for title in _titles(one)],
    )
    for number, one in enumerate(found, start=1):
        _draw(figure, one, number)
    figure.update_layout(
        **FRAME,
        title={"text": "Metrics as detectors of knowledge", "x": 0.01, "yanchor": "top"}
        | {"font": {"size": 17, "color": INK}},
        width=1080,
        height=_HEAD + _FOOT * len(found) + _LINE * sum(counts),
        margin={"l": 20, "r": 20, "t": _HEAD, "b": _FOOT},
        legend={"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"}
        | {"font": {"size": 12}, "tracegroupgap": 0, "itemclick": False, "itemdoubleclick": False},
    )
    height = figure.layout.height
    figure.update_layout(title_y=1 - 16 / height, legend_y=1 - 46 / height)
    return figure


def _titles(one: MetaEvaluation) -> tuple[str, str]:
    split = split_percent(one.forget_fraction)
    return f"{split}: value of each model", "faithfulness, and its 95 % interval"


def _lines(one: MetaEvaluation) -> tuple[MetricQuality, ...]:
    return (*one.metrics, *one.controls)


def _draw(figure: Any, one: MetaEvaluation, row: int) -> None:
    lines = _lines(one)
    for name, colour, offset, of in (
        (f"knows the rows ({len(one.known)} models)", KNOWN, -_OFFSET, "known"),
        (f"does not ({len(one.unknown)} models)", UNKNOWN, _OFFSET, "unknown"),
    ):
        points = [(i, value) for i, line in enumerate(lines) for value in getattr(line, of)]
        _points(
            *(figure, row, 1, name),
            x=[_scaled(lines[i], value) for i, value in points],
            y=[i + offset for i, _ in points],
            customdata=[[escape(lines[i].column.label), value] for i, value in points],
            hovertemplate="%{customdata[0]}: %{customdata[1]:.4g}<extra></extra>",
            marker={"color": faded(colour, 0.65), "size": 8},
            group=of,
        )
    cuts = [_scaled(line, line.threshold) for line in lines]
    _marks(figure, row, 1, cuts, "threshold", "line-ns", MUTED, [line.threshold for line in lines])
    _faithfulness(figure, row, lines)
    figure.update_xaxes(gridcolor=GRID, zeroline=False, tickfont={"size": 11, "color": MUTED})
    titles = ("from the lower to the upper bound of the scale", "½: chance; 1: no pair is confused")
    for col, text in enumerate(titles, start=1):
        title = {"text": text, "standoff": 6, "font": {"size": 12}}
        figure.update_xaxes(range=[-0.03, 1.03], title=title, row=row, col=col)
    labels = [_label(line) for line in lines]
    axis = {"tickvals": [*range(len(lines))], "ticktext": labels, "zeroline": False}
    figure.update_yaxes(**axis, range=[len(lines) - 0.5, -0.5], gridcolor=GRID, row=row)
    figure.update_yaxes(automargin=True, row=row, col=1)
    figure.add_vline(x=0.5, line={"color": MUTED, "width": 1, "dash": "dot"}, row=row, col=2)


def _faithfulness(figure: Any, row: int, lines: Sequence[MetricQuality]) -> None:
    areas = [line.faithfulness for line in lines]
    bars = {
        **{"type": "data", "symmetric": False},
        "array": [line.high - line.faithfulness for line in lines],
        "arrayminus": [line.faithfulness - line.low for line in lines],
    }
    shades = [faded(INK, 0.35) if line.control else INK for line in lines]
    _points(
        *(figure, row, 2, "faithfulness"),
        x=areas,
        y=[*range(len(lines))],
        error_x=bars | {"color": faded(INK, 0.6), "thickness": 1.5, "width": 4},
        customdata=[[escape(one.column.label), one.low, one.high] for one in lines],
        hovertemplate="%{customdata[0]}: %{x:.3f}, %{customdata[1]:.3f} to "
        "%{customdata[2]:.3f}<extra></extra>",
        marker={"color": shades, "size": 8},
    )
    for name, symbol, colour, of in _SCORES:
        scores = [of(line) for line in lines]
        if any(value is not None for value in scores):
            _marks(figure, row, 2, scores, name, symbol, colour, scores)


def _marks(
    figure: Any,
    row: int,
    col: int,
    x: Sequence[float | None],
    name: str,
    symbol: str,
    colour: str,
    values: Sequence[float | None],
) -> None:
    """Draw a mark on each metric's line; `values` are what the label at it shows."""
    ring = {"width": 2, "color": colour}
    _points(
        *(figure, row, col, name),
        x=x,
        y=[*range(len(x))],
        customdata=[signed(value, 4) for value in values],
        hovertemplate=f"{name} %{{customdata}}<extra></extra>",
        marker={"symbol": symbol, "color": colour, "size": 11, "line": ring},
    )


def _points(figure: Any, row: int, col: int, name: str, group: str = "", **options: Any) -> None:
    """Draw points, whose group the legend has once for all splits."""
    of = group or name
    new = not any(trace.legendgroup == of for trace in figure.data)
    points = go.Scatter(mode="markers", name=name, legendgroup=of, showlegend=new, **options)
    figure.add_trace(points, row=row, col=col)


def _label(line: MetricQuality) -> str:
    turned = " ↓" if line.knows == "lower" else ""
    text = escape(line.column.label.removesuffix(" (control)")) + turned
    return f"<i>control: {text}</i>" if line.control else text


def _scaled(line: MetricQuality, value: float) -> float:
    """The place of a value between the bounds of its metric's scale."""
    low, high = line.column.bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = (end(line.known + line.unknown) for end in (min, max))
    return 0.5 if low == high else (value - low) / (high - low)
