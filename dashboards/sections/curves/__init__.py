"""Forgetting curves: every metric by epoch, grouped by metric or by evaluation set."""

from collections.abc import Mapping
from typing import Any

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
        named = {group: by for item in grouped.values() for group, by in item.items()}
        names = dict.fromkeys(name for by in named.values() for name in by)
        figures = [
            {name: curves(panel, name, context.style) for name in names} for panel in context.panels
        ]
        return {"groups": named, "panels": figures}
