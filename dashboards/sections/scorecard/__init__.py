"""Scorecard: what each method's best setting scores on each question, beside both other models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unlearnbench.api.metric import Summary
from unlearnbench.stats.t_interval import Interval

from ...formatting import rate_text, signed
from ...report_section import PageContext, ReportSection
from .data import LASTING, ScorePanel, exported, questions, score_panels, unknown, warnings_by_kind
from .latex import exported_latex


def _values(context: PageContext) -> Mapping[str, Any] | None:
    panels = context.once(score_panels)
    if not panels:
        return None
    schema = context.columns.schema
    scores = questions(schema)
    return {
        "panels": panels,
        "questions": scores,
        "scored": {one.columns()[0].name for one in scores},
        "kept_parts": [schema.column(p).label for s in scores for p in s.parts() if _is_kept(s)],
        "unknown": unknown(schema),
        "retain": "retain" in schema.references,
        "warnings": [warnings_by_kind(panel, scores) for panel in panels],
        "attacked": any(panel.attacked for panel in panels),
        "lasting": LASTING,
        "brackets": _brackets(panels),
        "number": signed,
        "ends": _ends,
        "setting_text": rate_text,
    }


def _is_kept(score: Summary) -> bool:
    return score.columns()[0].name == "kept"


def _ends(interval: Interval, low: float = -math.inf, high: float = math.inf) -> str:
    """Format an interval within bounds; of two seeds, their range."""
    name = "min-max " if interval.is_range else ""
    ends = max(low, interval.low), min(high, interval.high)
    return f"{name}[{signed(ends[0], 2)}, {signed(ends[1], 2)}]"


def _brackets(panels: tuple[ScorePanel, ...]) -> list[str]:
    """Name the intervals in brackets."""
    scores = [score for panel in panels for line in panel.lines for score in line.scores]
    intervals = [score.interval for score in scores]
    worst = [line.lasting.worst for panel in panels for line in panel.lines if line.lasting]
    intervals += [one.lasting_interval for one in worst if one is not None]
    found = {one.n: one.name for one in intervals if one is not None}
    return [found[n] for n in sorted(found)]


def _lazy(context: PageContext) -> dict[str, Any]:
    return {
        "parts": exported(context.once(score_panels)),
        "latex": exported_latex(context),
    }


SECTION = ReportSection(
    folder="scorecard",
    id="scorecard",
    title="Scorecard",
    values=_values,
    lazy_data=_lazy,
)
