"""Scorecard: what each method's best setting scores on each question, beside both other models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.api.metric import Summary

from ...formatting import interval_names, interval_text, rate_text, signed
from ...report_section import PageContext, ReportSection
from .data import LASTING, exported, questions, score_panels, unknown, warnings_by_kind
from .latex import latex_tables


def _values(context: PageContext) -> Mapping[str, Any] | None:
    panels = context.once(score_panels)
    if not panels:
        return None
    schema = context.columns.schema
    scores = questions(schema)
    return {
        "panels": panels,
        "questions": scores,
        "parts": exported(panels),
        "scored": {one.columns()[0].name for one in scores},
        "kept_parts": [schema.column(p).label for s in scores for p in s.parts() if _is_kept(s)],
        "unknown": unknown(schema),
        "retain": "retain" in schema.references,
        "warnings": [*map(warnings_by_kind, panels)],
        "attacked": any(panel.attacked for panel in panels),
        "lasting": LASTING,
        "brackets": interval_names(
            one.interval for panel in panels for line in panel.lines for one in line.numbers
        ),
        "number": signed,
        "ends": interval_text,
        "setting_text": rate_text,
    }


def _is_kept(score: Summary) -> bool:
    return score.columns()[0].name == "kept"


def _lazy(context: PageContext) -> dict[str, Any]:
    """Write the table of each panel, by the panel's number."""
    return {str(i): {"LaTeX": text} for i, text in enumerate(latex_tables(context))}


SECTION = ReportSection("scorecard", "scorecard", "Scorecard", _values, lazy_data=_lazy)
