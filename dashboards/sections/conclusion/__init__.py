"""Conclusion: what was found, how sure it is and whether it lasts, with an answer of the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.evaluation.headlines import default_headline

from ...report_section import PageContext, ReportSection
from .data import results


def _values(context: PageContext) -> Mapping[str, Any]:
    headline = context.report.headline
    return {
        "results": results(context),
        "kept": headline.kept,
        "forgotten": headline.forgotten,
        "tofu": headline == default_headline(),
    }


SECTION = ReportSection(
    folder="conclusion",
    id="conclusion",
    title="Conclusion",
    values=_values,
)
