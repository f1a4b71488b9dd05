"""Answers before and after: the texts that models generated, epoch by epoch."""

from __future__ import annotations

from typing import Any

from ...report_section import PageContext, ReportSection
from .data import answer_data

MEMORIZATION = "extraction_strength"
"""Metric that questions are sorted by."""


def _answers(context: PageContext, budget: int) -> dict[str, Any]:
    columns = context.columns
    found = {name: columns.measure(MEMORIZATION, name) for name in columns.sets}
    memorization = {name: measure for name, measure in found.items() if measure is not None}
    return answer_data(context.evaluations, budget, memorization)


SECTION = ReportSection(
    folder="answers",
    id="answers",
    title="Answers, before and after",
    navigation="Answers",
    lazy_data_within=_answers,
)
