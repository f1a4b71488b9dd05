"""Answers before and after: the texts that models generated, epoch by epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unlearnbench.analysis.best_settings import rows_with_valid_start
from unlearnbench.api.observations import Evaluation

from ...page_budget import EmbeddedEvaluations, best_settings
from ...report_section import PageContext, ReportSection
from ..lasting.data import variant_answers
from .data import answer_data

MEMORIZATION = "extraction_strength"
"""Metric that questions are sorted by."""


def _answers(context: PageContext, budget: int) -> dict[str, Any]:
    columns = context.columns
    found = {name: columns.measure(MEMORIZATION, name) for name in columns.sets}
    memorization = {name: measure for name, measure in found.items() if measure is not None}
    return answer_data(_with_attacks(context), budget, memorization)


def _with_attacks(context: PageContext) -> EmbeddedEvaluations:
    """Insert the evaluations under attacks behind those of references and best settings."""
    under = context.once(variant_answers)
    embedded = context.evaluations
    if not under:
        return embedded
    leading = {(row.run_id, row.epoch) for row in context.report.rows if row.kind != "run"}
    for one in best_settings(rows_with_valid_start(context.report.rows)):
        leading |= {(row.run_id, one.epoch) for row in one.rows}
    ordered: dict[tuple[str, int | str], Evaluation] = {
        key: one for key, one in embedded.evaluations.items() if key in leading
    }
    for place, evaluation in under.items():
        ordered[place] = evaluation
    return replace(embedded, evaluations=ordered | dict(embedded.evaluations))


SECTION = ReportSection("answers", "answers", "Answers", lazy_data_within=_answers)
