"""What the page inflates when its reader comes to it: curves, distributions, losses, answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unlearnbench.report import Report

from . import answers, details, distributions, held
from .drawing import Look
from .pareto import Panel
from .training import steps, steps_drawn
from .trajectories import CURVES, curves


def collect(report: Report, shown: Sequence[Panel], look: Look, room: int) -> dict[str, Any]:
    """All of it, in at most `room` deflated bytes as far as answers can be left out.

    curves   per panel: metric → figure
    steps    per panel: figures
    details  see `details.collect`
    ratios   see `distributions.collect`
    answers  see `answers.collect`
    """
    curve_figures: list[dict[str, Any]] = []
    step_figures: list[list[Any]] = []
    most = steps_drawn(report.records)
    for panel in shown:
        place = (panel.model, panel.forget_fraction)
        rows = [r for r in report.rows if (r.model, r.forget_fraction) == place]
        records = [r for r in report.records if (r.model, r.forget_fraction) == place]
        curve_figures.append({m: curves(rows, m, look).to_plotly_json() for m in CURVES})
        found = steps(records, rows, look, most)
        step_figures.append([figure.to_plotly_json() for figure in found.values()])
    read = held.read(report.records, report.rows)
    rest = {
        "curves": curve_figures,
        "steps": step_figures,
        "details": details.collect(report.records),
        "ratios": distributions.collect(read, report.records),
    }
    return rest | {"answers": answers.collect(read, room - answers.deflated_size(rest))}
