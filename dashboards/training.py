"""What happened step by step: loss, its terms, and the gradient's norm, of every run by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from unlearnbench.records import Record
from unlearnbench.step import StepResult
from unlearnbench.table import Row

from .drawing import Look, meta
from .palette import faded, rate_text
from .trajectories import enframe, short, small_layout

MAX_STEPS = 200
"""Steps drawn of one run; of longer runs, evenly spaced ones."""
MAX_NUMBERS = 120_000
"""Drawn of all runs together; with many runs, fewer steps of each."""
FEWEST_STEPS = 10

Line = list[tuple[int, float]]
"""(step, value)"""


def steps_drawn(records: Sequence[Record]) -> int:
    """Most steps that are drawn of a run, where so many are drawn together."""
    quantities = sum(
        2 + len(r.steps[0].terms) + len(r.steps[0].reported) for r in records if r.steps
    )
    return max(FEWEST_STEPS, min(MAX_STEPS, MAX_NUMBERS // max(quantities, 1)))


def steps(
    records: Sequence[Record], rows: Sequence[Row], look: Look, most: int = MAX_STEPS
) -> dict[str, go.Figure]:
    """Loss, gradient norm, and each term of a loss that has several, by optimiser step.

    rows  say what the runs are called
    most  steps of a run that are drawn
    """
    names = {row.run_id: row.method for row in rows}
    runs = [r for r in records if r.kind == "run" and r.steps and r.method in look.colours]
    lines: dict[str, list[tuple[Record, Line]]] = defaultdict(list)
    for run in sorted(runs, key=lambda r: (r.method, r.learning_rate or 0.0, r.seed, r.id)):
        for quantity, values in _quantities(run.steps, most).items():
            lines[quantity].append((run, values))
    figures: dict[str, go.Figure] = {}
    first = ("Loss", "Gradient norm")
    for quantity in sorted(lines, key=lambda q: (q not in first, first[0] != q, q)):
        figure = go.Figure(layout={"template": go.layout.Template()})
        figure.add_traces(
            [_line(run, names.get(run.id, run.method), v, look) for run, v in lines[quantity]]
        )
        figure.update_layout(**small_layout(quantity, "step"))
        enframe(figure, log=True if quantity == "Gradient norm" else None)
        figures[quantity] = figure
    return figures


def _quantities(results: Sequence[StepResult], most: int) -> dict[str, Line]:
    stride = -(-len(results) // most)
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


def _line(run: Record, name: str, values: Line, look: Look) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _ in values],
        y=[short(y) for _, y in values],
        mode="lines",
        name=escape(f"{name}, rate {rate_text(run.learning_rate)}, seed {run.seed}"),
        hovertemplate="%{fullData.name}<br>step %{x}: %{y:.4g}<extra></extra>",
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
