"""Truth ratios of a run's epochs and of the retain model, as a figure for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.api.observations import FloatArray
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import EvaluationError
from unlearnbench.results.records import Record

from ..formatting import rate_text, signed
from .notebook import FONT, GRID
from .palette import PALETTE, faded, slots
from .print_size import PrintSize, fit
from .tradeoff_axes import INK, MUTED
from .truth_ratio_data import Gap, largest_gap, logarithms, ratios_of


def build(
    record: Record,
    epoch: int,
    retain: Record,
    start: Record | None = None,
    *,
    title: str | None = None,
    width: str | float | None = None,
    font_size: float | None = None,
    legend: bool = True,
) -> go.Figure:
    """Draw the empirical distribution functions of truth ratios on the forget set, with D marked.

    record  a run; its other epochs are thin
    retain  the retain model, on the same questions, evaluated with the same profile
    start   the fine-tuned model, pale
    title   default: the run and its numbers; none at a width in print
    width, font_size, legend  see `PrintSize.of`

    Raises: EvaluationError if the profiles differ, or a ratio is NaN.
    """
    if retain.profile != record.profile:
        raise EvaluationError(
            f"record {record.id} was evaluated by {record.profile}, the retain model {retain.id} "
            f"by {retain.profile}: give one of the same profile"
        )
    own = {e: r for e in record.evaluations if (r := _ratios(record, e)) is not None}
    goal = _ratios(retain, min(retain.evaluations))
    gap = largest_gap(own[epoch], goal) if epoch in own and goal is not None else None
    if gap is None or goal is None:
        raise EvaluationError(
            f"record {record.id}, epoch {epoch}: a truth ratio is not a number, so there is "
            "nothing to compare; choose another epoch"
        )
    figure = go.Figure(layout={"template": go.layout.Template()})
    if start is not None and (ratios := _ratios(start, min(start.evaluations))) is not None:
        figure.add_trace(_line(ratios, "fine-tuned model", faded(MUTED, 0.45), 1.5))
    colour = PALETTE[slots([record.method])[record.method]][0]
    figure.add_traces(_others(own, epoch, colour))
    figure.add_trace(_line(goal, "retain model", INK, 2))
    figure.add_trace(_line(own[epoch], f"{record.method}, epoch {epoch}", colour, 2))
    _mark(figure, gap)
    size = PrintSize.of(width, font_size, legend=legend)
    _set_layout(figure, record, gap)
    if title is not None or (size is not None and size.width is not None):
        figure.update_layout(title={"text": title or ""})
    return figure if size is None else fit(figure, size, 1, 1)


def _ratios(record: Record, epoch: int) -> FloatArray | None:
    return ratios_of(record.evaluations[epoch], profile_of_id(record.profile))


def _others(own: Mapping[int, FloatArray], epoch: int, colour: str) -> list[go.Scatter]:
    lines = [
        _line(ratios, f"epoch {other}", faded(colour, 0.25), 1)
        for other, ratios in sorted(own.items())
        if other not in (0, epoch)
    ]
    return [line.update(showlegend=False) for line in lines]


def _line(ratios: FloatArray, name: str, colour: str, width: float) -> go.Scatter:
    x = 10 ** logarithms(ratios)
    n = len(ratios)
    return go.Scatter(
        x=[x[0], *x],
        y=[0.0, *(np.arange(1, n + 1) / n)],
        mode="lines",
        name=name,
        line={"color": colour, "width": width, "shape": "hv"},
        hovertemplate="R = %{x:.3g}: %{y:.0%} of the questions<extra>%{fullData.name}</extra>",
    )


def _mark(figure: go.Figure, gap: Gap) -> None:
    n = gap.quality.n
    ends = sorted((gap.below / n, gap.below_retain / n))
    at = 10**gap.at
    figure.add_trace(
        go.Scatter(
            x=[at, at],
            y=ends,
            mode="lines+markers",
            name="D",
            line={"color": INK, "width": 2, "dash": "dot"},
            marker={"symbol": "line-ew-open", "size": 12, "color": INK, "line": {"width": 2}},
            hovertemplate=f"D = {gap.quality.statistic:.4f}<extra></extra>",
            showlegend=False,
        )
    )
    # No curve passes left of and above the bar, or right of and below it.
    above = ends[1] < 0.9
    figure.add_annotation(
        text=f"D = {gap.quality.statistic:.3f}",
        x=gap.at,
        y=ends[1] if above else ends[0],
        xanchor="right" if above else "left",
        yanchor="bottom" if above else "top",
        showarrow=False,
        font={"size": 13, "color": INK},
    )


def _set_layout(figure: go.Figure, record: Record, gap: Gap) -> go.Figure:
    quality = gap.quality
    axis: dict[str, Any] = {
        "gridcolor": GRID,
        "zeroline": False,
        "tickfont": {"size": 11, "color": MUTED},
    }
    where = panel_label(record.model, record.forget_fraction)
    result = (
        f"n = {quality.n}, D = {quality.statistic:.4f}, "
        f"log₁₀ Forget Quality {signed(quality.log10_p, 2)} (p = {quality.p_value:.2g})"
    )
    rate = f"rate {rate_text(record.learning_rate)}, seed {record.seed}"
    figure.update_layout(
        title={
            "text": f"Truth ratios on the forget set: {record.method}, {rate}; {where}"
            f"<br><sup>{result}</sup>",
            **{"x": 0.01, "y": 0.96, "yanchor": "top", "font": {"size": 16, "color": INK}},
        },
        font={"family": FONT, "color": INK, "size": 12},
        width=800,
        height=480,
        margin={"l": 62, "r": 20, "t": 96, "b": 54},
        plot_bgcolor="#ffffff",
        paper_bgcolor="#ffffff",
        legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
    )
    figure.update_xaxes(type="log", title_text="truth ratio R", **axis)
    figure.update_yaxes(
        range=[-0.02, 1.04], tickformat=".0%", title_text="questions up to R", **axis
    )
    return figure
