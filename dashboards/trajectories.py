"""What changed, epoch by epoch and step by step: forgetting curves, losses, gradient norms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import plotly.graph_objects as go

from unlearnbench.ranking import Setting, average_seeds
from unlearnbench.records import Record
from unlearnbench.step import StepResult
from unlearnbench.table import SET_ORDER, Row

from .drawing import Look, meta
from .frame import INK, MUTED
from .palette import faded

SET_NAMES: Mapping[str, str] = {
    "forget": "Forget set",
    "retain": "Retain set",
    "real_authors": "Real authors",
    "world_facts": "World facts",
}
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Summary": {
        "model_utility": "Model Utility",
        "log10_forget_quality": "log₁₀ Forget Quality",
        "ks_statistic": "KS statistic D",
    },
    **{
        title: {f"{metric}_{name}": SET_NAMES[name] for name in ("forget", *SET_ORDER[:3])}
        for title, metric in (
            ("Probability", "probability"),
            ("ROUGE-L", "rouge"),
            ("Truth ratio", "truth_ratio"),
        )
    },
}
"""Figures that are looked at together: metric to title."""
MAX_STEPS = 200
"""Steps drawn of one run; of longer runs, evenly spaced ones."""


def curves(rows: Sequence[Row], metric: str, look: Look, title: str = "") -> go.Figure:
    """One metric by epoch on one model and fraction, a line per setting, averaged over seeds.

    Lines start at the fine-tuned model; the retain model's value is the dotted level.
    """
    start = _value(rows, "fine-tuned", metric)
    figure = go.Figure(layout={"template": go.layout.Template()})
    groups = groupby(average_seeds(rows), key=lambda s: (s.method, s.learning_rate))
    figure.add_traces([_curve(tuple(group), metric, start, look) for _, group in groups])
    goal = _value(rows, "retain", metric)
    if goal is not None:
        figure.add_hline(y=goal, line={"color": MUTED, "width": 1, "dash": "dot"}, name="retain")
    figure.update_layout(**_layout(title, "epoch", dtick=1))
    return figure


def _value(rows: Sequence[Row], kind: str, metric: str) -> float | None:
    return next((r.metrics[metric] for r in rows if r.kind == kind), None)


def _curve(settings: Sequence[Setting], metric: str, start: float | None, look: Look) -> go.Scatter:
    first = settings[0]
    lead = [] if start is None or first.epoch == 0 else [(0, start)]
    points = lead + [(s.epoch, s.metrics[metric]) for s in settings]
    colour = look.colour(first.family)
    return go.Scatter(
        x=[x for x, _ in points],
        y=[None if y is None else _short(y) for _, y in points],
        mode="lines+markers" if len(points) < 3 else "lines",
        name=first.method,
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


def steps(records: Sequence[Record], look: Look) -> dict[str, go.Figure]:
    """Loss, each of its terms where there are several, and gradient norm, by optimiser step."""
    runs = [r for r in records if r.kind == "run" and r.steps and r.method in look.colours]
    lines: dict[str, list[tuple[Record, list[tuple[int, float]]]]] = defaultdict(list)
    for run in sorted(runs, key=lambda r: (r.method, r.learning_rate or 0.0, r.seed, r.id)):
        for name, values in _quantities(run.steps).items():
            lines[name].append((run, values))
    figures: dict[str, go.Figure] = {}
    for name in sorted(lines, key=lambda n: (n != "Loss", n == "Gradient norm", n)):
        figure = go.Figure(layout={"template": go.layout.Template()})
        figure.add_traces([_line(run, values, look) for run, values in lines[name]])
        figure.update_layout(**_layout(name, "step"))
        if name == "Gradient norm":
            figure.update_yaxes(type="log")
        figures[name] = figure
    return figures


def _quantities(results: Sequence[StepResult]) -> dict[str, list[tuple[int, float]]]:
    stride = -(-len(results) // MAX_STEPS)
    kept = results[::stride]
    found = {"Loss": [(s.step, s.loss) for s in kept]}
    names = sorted({name for s in kept for name in s.terms})
    if len(names) > 1:
        for name in names:
            found[f"Loss term: {name}"] = [(s.step, s.terms[name]) for s in kept if name in s.terms]
    for name in sorted({name for s in kept for name in s.reported}):
        found[f"Reported: {name}"] = [
            (s.step, s.reported[name]) for s in kept if name in s.reported
        ]
    return found | {"Gradient norm": [(s.step, s.grad_norm) for s in kept]}


def _line(run: Record, values: Sequence[tuple[int, float]], look: Look) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _ in values],
        y=[_short(y) for _, y in values],
        mode="lines",
        name=f"{run.method}, seed {run.seed}",
        line={
            "color": faded(look.colour(run.method), 0.8),
            "width": 1.3,
            "dash": look.dashes[run.learning_rate],
        },
        meta=meta(
            "curve",
            run.method,
            run.learning_rate,
            slot=look.colours[run.method],
            alpha=0.8,
        ),
        showlegend=False,
    )


def _short(value: float) -> float | None:
    """Five digits, which no figure shows more of; None where JSON has no such number."""
    return float(f"{value:.5g}") if abs(value) < float("inf") else None


def _layout(title: str, x_title: str, **x_axis: Any) -> dict[str, Any]:
    axis = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    return {
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 13, "color": INK}},
        "xaxis": {**axis, **x_axis, "title": {"text": x_title}},
        "yaxis": {**axis},
        "margin": {"l": 44, "r": 8, "t": 34, "b": 38},
        "height": 250,
        "hovermode": "closest",
    }
