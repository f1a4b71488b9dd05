"""Training by step: loss, its terms and gradient norm of every run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.training.step_result import StepResult

from ..formatting import rate_text
from .curve_plot import line_style, set_axis_range, small_layout, trace
from .tradeoff_plot import Style

MAX_STEPS = 200
"""Steps drawn per run; longer runs are thinned evenly."""
MAX_NUMBERS = 120_000
"""Values drawn of all runs together; with many runs, fewer steps of each are drawn."""
FEWEST_STEPS = 10

Line = list[tuple[int, float]]
"""(step, value)"""


def max_steps(records: Sequence[Record]) -> int:
    """Compute how many steps of a run are drawn, depending on the number of runs."""
    quantities = sum(
        2 + len(r.steps[0].terms) + len(r.steps[0].reported) for r in records if r.steps
    )
    return max(FEWEST_STEPS, min(MAX_STEPS, MAX_NUMBERS // max(quantities, 1)))


def steps(
    records: Sequence[Record], rows: Sequence[TableRow], style: Style, most: int = MAX_STEPS
) -> dict[str, dict[str, Any]]:
    """Draw loss, gradient norm, and each term of a loss that has several, by optimiser step.

    rows  for the labels of the runs
    most  steps drawn per run
    """
    names = {row.run_id: row.method for row in rows}
    runs = [r for r in records if r.kind == "run" and r.steps and r.method in style.slots]
    lines: dict[str, list[tuple[Record, Line]]] = defaultdict(list)
    for run in sorted(runs, key=lambda r: (r.method, r.learning_rate or 0.0, r.seed, r.id)):
        for quantity, values in _quantities(run.steps, most).items():
            lines[quantity].append((run, values))
    figures: dict[str, dict[str, Any]] = {}
    first = ("Loss", "Gradient norm")
    for quantity in sorted(lines, key=lambda q: (q not in first, first[0] != q, q)):
        drawn = [_line(run, names.get(run.id, run.method), v, style) for run, v in lines[quantity]]
        layout = small_layout(quantity, "step")
        set_axis_range(layout, drawn, log=True if quantity == "Gradient norm" else None)
        figures[quantity] = {"data": drawn, "layout": layout}
    return figures


def _quantities(results: Sequence[StepResult], most: int) -> dict[str, Line]:
    drawn = results[:: -(-len(results) // most)]
    lines = {"Loss": [(s.step, s.loss) for s in drawn]}
    terms = sorted({name for s in drawn for name in s.terms})
    for name in terms if len(terms) > 1 else ():
        lines[f"Loss term: {name}"] = [(s.step, s.terms[name]) for s in drawn if name in s.terms]
    for name in sorted({name for s in drawn for name in s.reported}):
        values = [(s.step, s.reported[name]) for s in drawn if name in s.reported]
        lines[f"Reported: {name}"] = values
    return lines | {"Gradient norm": [(s.step, s.grad_norm) for s in drawn]}


def _line(run: Record, name: str, values: Line, style: Style) -> dict[str, Any]:
    return trace(
        [x for x, _ in values],
        [y for _, y in values],
        f"{name}, rate {rate_text(run.learning_rate)}, seed {run.seed}",
        "%{fullData.name}<br>step %{x}: %{y:.4g}",
        mode="lines",
        **line_style(style, run.method, run.learning_rate, width=1.3, alpha=0.8),
    )
