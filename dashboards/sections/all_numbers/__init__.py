"""All numbers: a row per run and epoch, drawn by the script from the rows of the page's data."""

from collections.abc import Mapping
from typing import Any

from ...formatting import short
from ...report_section import PageContext, Section


class AllNumbers(Section):
    """The table of all numbers."""

    name, title, order, folder = "numbers", "Numbers", 120, "all_numbers"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Count the columns that a reader may add."""
        return {"further": len(context.columns.further)}

    def data(self, context: PageContext) -> Any:
        """Collect these columns, each by the rows of the page's data."""
        return {
            column.name: [short(row.metrics[column.name]) for row in context.report.rows]
            for column in context.columns.further
        }
