"""Training, step by step: losses, their terms and gradient norms of every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...figures.step_plot import max_steps, steps
from ...report_section import PageContext, ReportSection


def _values(context: PageContext) -> Mapping[str, Any]:
    return {"max_steps": max_steps(context.report.records)}


def _figures(context: PageContext) -> list[list[Any]]:
    """Draw the figures of each panel."""
    most = max_steps(context.report.records)
    found: list[list[Any]] = []
    for panel in context.panels:
        figures = steps(context.records_of(panel), context.rows_of(panel), context.style, most)
        found.append([*figures.values()])
    return found


SECTION = ReportSection("training_steps", "training", "Training", _values, lazy_data=_figures)
