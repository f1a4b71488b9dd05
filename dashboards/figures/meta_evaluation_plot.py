"""Figure of a meta-evaluation: each metric's value for every model, and its faithfulness."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.analysis.meta_evaluation import MetaEvaluation, MetricQuality
from unlearnbench.api.benchmark import split_percent

from ..formatting import signed
from .marks import Figure
from .notebook import TEMPLATE
from .palette import INK, MUTED, PALETTE, faded

KNOWN = PALETTE[1][0]
"""Colour of models that know the forget rows."""
UNKNOWN = PALETTE[0][0]
"""Colour of models that do not know the forget rows."""
_LINE = 26
"""Pixels of a metric's line."""
_HEAD = 120
"""Pixels above all metrics."""
_FOOT = 60
"""Pixels below all metrics."""
_GAP = 75
"""Pixels between splits."""
_OFFSET = 0.16
"""Distance of points from the metric's line, in lines: models that know above, others below."""


def build(evaluations: Sequence[MetaEvaluation]) -> go.Figure:
    """Draw a row of two panels for each split: values of the models, and faithfulness.

    Values are scaled, see `_scaled`. The label at a point has the value itself. Controls stand
    below the metrics.
    """
    counts = [len(item.metrics) + len(item.controls) for item in evaluations]
    inside = _GAP * (len(evaluations) - 1) + _LINE * sum(counts)
    height = _HEAD + _FOOT + inside
    splits = [split_percent(item.forget_fraction) for item in evaluations]
    titles = ("value of each model", "faithfulness, and its 95 % interval")
    figure: Any = make_subplots(
        rows=len(evaluations),
        cols=2,
        shared_yaxes=True,
        column_widths=[0.55, 0.45],
        horizontal_spacing=0.03,
        vertical_spacing=_GAP / inside if len(evaluations) > 1 else 0,
        row_heights=[count / sum(counts) for count in counts],
        subplot_titles=[f"{split}: {text}" for split in splits for text in titles],
    )
    for row, item in enumerate(evaluations, start=1):
        lines = (*item.metrics, *item.controls)
        for col, trace in _traces(item, lines):
            figure.add_trace(
                {"type": "scatter", "mode": "markers", "legendgroup": trace["name"]}
                | {"showlegend": row == 1, "y": [*range(len(lines))], **trace},
                row=row,
                col=col,
            )
        text = {"tickvals": [*range(len(lines))], "ticktext": [*map(_label, lines)]}
        figure.update_yaxes(**text, range=[len(lines) - 0.5, -0.5], zeroline=False, row=row)
        figure.update_yaxes(automargin=True, row=row, col=1)
        figure.add_vline(x=0.5, line={"color": MUTED, "width": 1, "dash": "dot"}, row=row, col=2)
    figure.update_xaxes(range=[-0.03, 1.03], zeroline=False)
    figure.update_xaxes(title_text="from the lower to the upper bound of the scale", col=1)
    figure.update_xaxes(title_text="½: chance; 1: no pair is confused", col=2)
    return figure.update_layout(
        template=TEMPLATE,
        title_text="Metrics as detectors of knowledge",
        width=1080,
        height=height,
        margin={"l": 20, "r": 20, "t": _HEAD, "b": _FOOT},
        legend={"yref": "container", "y": 1 - 46 / height, "itemclick": False},
    )


def _traces(
    evaluation: MetaEvaluation, lines: Sequence[MetricQuality]
) -> Iterator[tuple[int, Figure]]:
    """Yield the traces of a split, each with the column of its panel, from 1."""
    knowing = f"knows the rows ({len(evaluation.known)} models)"
    values = [line.known for line in lines]
    yield 1, _models(knowing, KNOWN, lines, values, -_OFFSET) | {"legendgroup": "known"}
    others = f"does not ({len(evaluation.unknown)} models)"
    values = [line.unknown for line in lines]
    yield 1, _models(others, UNKNOWN, lines, values, _OFFSET) | {"legendgroup": "unknown"}
    cuts = [_scaled(line, line.threshold) for line in lines]
    yield 1, _marks("threshold", "line-ns", MUTED, cuts, [line.threshold for line in lines])

    yield 2, _faithfulness(lines)
    for name, symbol, colour_index, scores in (
        ("overall", "diamond", 3, [line.overall for line in lines]),
        ("Q, quantization", "triangle-up", 2, [line.quantization.value for line in lines]),
        ("R, relearning", "triangle-down", 4, [line.relearning.value for line in lines]),
    ):
        if any(value is not None for value in scores):
            yield 2, _marks(name, symbol, PALETTE[colour_index][0], scores, scores)


def _models(
    name: str,
    colour: str,
    lines: Sequence[MetricQuality],
    values_of_lines: Sequence[Sequence[float]],
    offset: float,
) -> Figure:
    """Draw a point for each model on the line of each metric.

    Args:
        name: Name of the models in the legend.
        colour: Colour of the points.
        lines: The metrics.
        values_of_lines: For each metric the values of the models.
        offset: Distance of the points from the metric's line, in lines.
    """
    xs: list[float] = []
    ys: list[float] = []
    labels: list[list[Any]] = []
    for index, (line, values) in enumerate(zip(lines, values_of_lines, strict=True)):
        for value in values:
            xs.append(_scaled(line, value))
            ys.append(index + offset)
            labels.append([escape(line.column.label), value])
    return {
        "name": name,
        "x": xs,
        "y": ys,
        "customdata": labels,
        "hovertemplate": "%{customdata[0]}: %{customdata[1]:.4g}<extra></extra>",
        "marker": {"color": faded(colour, 0.65), "size": 8},
    }


def _faithfulness(lines: Sequence[MetricQuality]) -> Figure:
    """Draw the faithfulness of each metric with its interval. Controls are pale."""
    intervals = {
        "type": "data",
        "symmetric": False,
        "color": faded(INK, 0.6),
        "thickness": 1.5,
        "array": [line.high - line.faithfulness for line in lines],
        "arrayminus": [line.faithfulness - line.low for line in lines],
    }
    shades = [faded(INK, 0.35) if line.control else INK for line in lines]
    return {
        "name": "faithfulness",
        "x": [line.faithfulness for line in lines],
        "error_x": intervals,
        "customdata": [[escape(line.column.label), line.low, line.high] for line in lines],
        "hovertemplate": "%{customdata[0]}: %{x:.3f}, %{customdata[1]:.3f} to "
        "%{customdata[2]:.3f}<extra></extra>",
        "marker": {"color": shades, "size": 8},
    }


def _marks(
    name: str,
    symbol: str,
    colour: str,
    x: Sequence[float | None],
    values: Sequence[float | None],
) -> Figure:
    """Draw a mark on each metric's line. The label at a mark shows the number in `values`."""
    ring = {"width": 2, "color": colour}
    return {
        "name": name,
        "x": [*x],
        "customdata": [signed(value, 4) for value in values],
        "hovertemplate": f"{name} %{{customdata}}<extra></extra>",
        "marker": {"symbol": symbol, "color": colour, "size": 11, "line": ring},
    }


def _label(line: MetricQuality) -> str:
    turned = " ↓" if line.knows == "lower" else ""
    text = escape(line.column.label.removesuffix(" (control)")) + turned
    return f"<i>control: {text}</i>" if line.control else text


def _scaled(line: MetricQuality, value: float) -> float:
    """Scale a value to 0 at the lower and 1 at the upper bound of its metric.

    Without two finite bounds, the smallest and the largest value of the models stand for them.
    """
    low, high = line.column.bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        values = line.known + line.unknown
        low = min(values)
        high = max(values)
    return 0.5 if low == high else (value - low) / (high - low)
