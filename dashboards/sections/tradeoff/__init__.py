"""Trade-off: what is kept against what is forgotten, a panel per model and forget fraction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.stats.t_interval import LEVEL

from ...figures.tradeoff_data import COLLAPSE_SHARE
from ...report_section import PageContext, ReportSection
from .run_details import run_details
from .text import notes, published_note


def _values(context: PageContext) -> Mapping[str, Any]:
    found = {(one.model, one.split): one.found for one in context.report.conclusions}
    dashes = context.style.dashes
    return {
        "headline": context.report.headline,
        "panels": [
            {
                "panel": panel,
                "found": found.get((panel.model, panel.forget_fraction), ""),
                "notes": notes(panel),
                "published": published_note(panel),
            }
            for panel in context.panels
        ],
        "height": round(context.panel_size[1] + 70),
        "questions": sorted({p.questions for p in context.panels if p.questions is not None}),
        "has_dashes": len(set(dashes.values())) > 1 or len(dashes) < 3,
        "level": round(100 * LEVEL),
        "collapse_share": round(100 * COLLAPSE_SHARE),
        "utility_share": round(100 * UTILITY_SHARE),
    }


SECTION = ReportSection(
    folder="tradeoff",
    id="trade-off",
    title="Trade-off",
    values=_values,
    lazy_data=lambda context: run_details(context.report.records),
)
