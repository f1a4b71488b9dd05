"""Forgetting curves: every metric by epoch, grouped by metric or by evaluation set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.best_settings import average_seeds

from ...figures.curve_plot import Groups, curves, groups
from ...report_section import PageContext, ReportSection


def _groups(context: PageContext) -> Groups:
    return groups(context.columns)


def _values(context: PageContext) -> Mapping[str, Any]:
    return {"retain": any(panel.retain for panel in context.panels)}


def _figures(context: PageContext) -> list[dict[str, Any]]:
    """Draw all curves of each panel, by column."""
    grouped = [by for named in _groups(context).values() for by in named.values()]
    names = dict.fromkeys(name for by in grouped for name in by)
    found: list[dict[str, Any]] = []
    for panel in context.panels:
        rows = context.rows_of(panel)
        settings = average_seeds(rows)
        found.append({name: curves(rows, name, context.style, "", settings) for name in names})
    return found


SECTION = ReportSection("curves", "curves", "Curves", _values, data=_groups, lazy_data=_figures)
