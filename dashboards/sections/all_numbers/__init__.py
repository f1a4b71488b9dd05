"""All numbers: a row per run and epoch, drawn by the script from the rows of the page's data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...formatting import short
from ...report_section import PageContext, ReportSection


def _values(context: PageContext) -> Mapping[str, Any]:
    return {"further": len(context.columns.further)}


def _further(context: PageContext) -> dict[str, list[float | None]]:
    """Collect the columns that a reader may add, each by the rows of the page's data."""
    return {
        column.name: [short(row.metrics[column.name]) for row in context.report.rows]
        for column in context.columns.further
    }


SECTION = ReportSection("all_numbers", "numbers", "Numbers", _values, lazy_data=_further)
