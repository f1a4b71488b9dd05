"""What changed, epoch by epoch: forgetting curves of every metric, set by set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape, unescape
from itertools import groupby
from typing import Any

import plotly.graph_objects as go

from unlearnbench.ranking import Setting, average_seeds
from unlearnbench.table import SET_ORDER, Row

from .drawing import Look, meta
from .extremes import frame
from .frame import INK, MUTED
from .palette import faded, rate_text, signed

SET_NAMES: Mapping[str, str] = {
    "forget": "Forget set",
    "retain": "Retain set",
    "real_authors": "Real authors",
    "world_facts": "World facts",
}
SET_METRICS: Mapping[str, str] = {
    "probability": "Probability",
    "rouge": "ROUGE-L",
    "truth_ratio": "Truth ratio",
}
GROUPS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "": {
        "Summary": {
            "model_utility": "Model Utility",
            "log10_forget_quality": "log₁₀ Forget Quality",
            "ks_statistic": "KS statistic D",
        }
    },
    "by metric": {
        title: {f"{metric}_{name}": SET_NAMES[name] for name in ("forget", *SET_ORDER[:3])}
        for metric, title in SET_METRICS.items()
    },
    "by set": {
        title: {f"{metric}_{name}": told for metric, told in SET_METRICS.items()}
        for name, title in SET_NAMES.items()
    },
}
"""Figures that are looked at together: kind of group → group → metric → title."""
CURVES: tuple[str, ...] = tuple(
    dict.fromkeys(m for kind in GROUPS.values() for group in kind.values() for m in group)
)
"""Every metric that has a curve, once."""


def curves(rows: Sequence[Row], metric: str, look: Look, title: str = "") -> go.Figure:
    """One metric by epoch on one model and fraction, a line per setting, averaged over seeds.

    Lines start at the fine-tuned model; the retain model's value is the dotted level. Bars are
    bootstrap intervals over seeds, where there are several.
    """
    start = _value(rows, "fine-tuned", metric)
    goal = _value(rows, "retain", metric)
    figure = go.Figure(layout={"template": go.layout.Template()})
    groups = groupby(average_seeds(rows), key=lambda s: (s.method, s.learning_rate))
    figure.add_traces([_curve(tuple(group), metric, start, look) for _, group in groups])
    figure.update_layout(**small_layout(title, "epoch", dtick=1))
    if goal is not None:
        figure.add_hline(y=goal, line={"color": MUTED, "width": 1, "dash": "dot"}, name="retain")
        figure.add_annotation(**_level_name(goal, signed(goal, 2)))
    _set_frame(figure, metric, [v for v in (start, goal) if v is not None])
    return figure


def _set_frame(figure: go.Figure, metric: str, levels: Sequence[float]) -> None:
    """One scale for all shares, which lie in [0, 1]; elsewhere far-out lines are left outside."""
    if metric.startswith(tuple(SET_METRICS)):
        figure.update_yaxes(range=[-0.02, 1.04])
    else:
        enframe(figure, log=False, levels=levels)


def _value(rows: Sequence[Row], kind: str, metric: str) -> float | None:
    return next((r.metrics[metric] for r in rows if r.kind == kind), None)


def _level_name(at: float, told: str) -> dict[str, Any]:
    return {
        "name": "retain",
        "text": f"retain model {told}",
        **{"x": 1, "xref": "paper", "xanchor": "right", "y": at, "yref": "y", "yanchor": "bottom"},
        "showarrow": False,
        "font": {"size": 11, "color": MUTED},
    }


def _curve(settings: Sequence[Setting], metric: str, start: float | None, look: Look) -> go.Scatter:
    first = settings[0]
    lead = [] if start is None or first.epoch == 0 else [(0, start)]
    points = lead + [(s.epoch, s.metrics[metric]) for s in settings]
    colour = look.colour(first.family)
    return go.Scatter(
        x=[x for x, _ in points],
        y=[None if y is None else short(y) for _, y in points],
        error_y=_intervals(settings, metric, len(lead), colour),
        mode="lines+markers" if len(points) < 3 else "lines",
        name=escape(f"{first.method}, rate {rate_text(first.learning_rate)}"),
        hovertemplate="%{fullData.name}<br>epoch %{x}: %{y:.4g}"
        f"{_seeds(settings)}<extra></extra>",
        line={"color": faded(colour, 0.85), "width": 1.6, "dash": look.dashes[first.learning_rate]},
        meta=meta(
            "curve",
            first.family,
            first.learning_rate,
            slot=look.colours[first.family],
            alpha=0.85,
        ),
        showlegend=False,
    )


def _seeds(settings: Sequence[Setting]) -> str:
    counts = {len(s.rows) for s in settings}
    return f", mean of {max(counts)} seeds" if max(counts) > 1 else ""


def _intervals(
    settings: Sequence[Setting], metric: str, lead: int, colour: str
) -> dict[str, Any] | None:
    """Error bars: 95 % bootstrap intervals of the mean; None where no setting has two seeds."""
    found = [s.interval(metric) for s in settings]
    if not any(found):
        return None
    up = [short(i.high - i.mean, 2) if i else 0.0 for i in found]
    down = [short(i.mean - i.low, 2) if i else 0.0 for i in found]
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0] * lead + up,
        "arrayminus": [0.0] * lead + down,
        "width": 2,
        "thickness": 1,
        "color": faded(colour, 0.45),
    }


def enframe(figure: Any, log: bool | None = None, levels: Sequence[float] = ()) -> None:
    """Give a figure the frame that shows all but far-out lines; `layout.meta` tells those.

    levels  values that the frame must show, whatever the lines do
    """
    found = frame([t.y for t in figure.data], log)
    if found is None:
        return
    low, high = found.low, found.high
    if not found.log:
        pad = 0.02 * (high - low)
        low, high = min([low, *(v - pad for v in levels)]), max([high, *(v + pad for v in levels)])
    figure.update_yaxes(type="log" if found.log else "linear", range=[low, high])
    told = [_farthest(figure.data[i], low, high, found.log) for i in found.outside]
    figure.update_layout(meta={"outside": told})


def _farthest(trace: Any, low: float, high: float, log: bool) -> str:
    values = [y for y in trace.y if y is not None]
    bottom, top = (10**low, 10**high) if log else (low, high)
    far = max(values) if max(values) - top > bottom - min(values) else min(values)
    return f"{unescape(trace.name)} ({signed(far, 0) if abs(far) >= 100 else signed(far, 2)})"


def short(value: float, digits: int = 4) -> float | None:
    """As many digits as a figure shows; None where JSON has no such number."""
    return float(f"{value:.{digits}g}") if abs(value) < float("inf") else None


def small_layout(title: str, x_title: str, **x_axis: Any) -> dict[str, Any]:
    """Layout of a small figure among others."""
    axis = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    return {
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 13, "color": INK}},
        "xaxis": {**axis, **x_axis, "title": {"text": x_title}},
        "yaxis": {**axis},
        "margin": {"l": 44, "r": 8, "t": 34, "b": 38},
        "height": 250,
        "hovermode": "closest",
    }
