"""Forgetting curves: every metric by epoch, grouped by metric or by evaluation set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.best_settings import average_seeds

from ...figures.curve_plot import curves, groups
from ...report_section import PageContext, Section


class Curves(Section):
    """Curves by epoch, of which the reader chooses a group."""

    name, title, order, folder = "curves", "Curves", 80, "curves"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """List the groups to choose from."""
        retain = any(panel.retain for panel in context.panels)
        return {"retain": retain, "groups": groups(context.columns)}

    def data(self, context: PageContext) -> Any:
        """Draw all curves of each panel, by column."""
        grouped = groups(context.columns)
        named = {group: by for one in grouped.values() for group, by in one.items()}
        names = dict.fromkeys(name for by in named.values() for name in by)
        figures: list[dict[str, Any]] = []
        for panel in context.panels:
            rows = context.rows_of(panel)
            settings = average_seeds(rows)
            figures.append({name: curves(rows, name, context.style, settings) for name in names})
        return {"groups": named, "panels": figures}
