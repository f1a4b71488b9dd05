"""Truth ratios: the two distributions that Forget Quality compares, at each best setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.api.observations import FloatArray
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import EvaluationError
from unlearnbench.results.table import TableRow

from ...figures.tradeoff_data import Panel
from ...figures.tradeoff_plot import meta
from ...figures.truth_ratio_plot import draw, ratios_of
from ...formatting import rate_text
from ...report_section import PageContext, ReportSection


def _values(context: PageContext) -> Mapping[str, Any] | None:
    """Leave the section out where no test of truth ratios is behind the headline."""
    test = context.report.headline.forgotten.test
    if test is None or not any(context.once(ratio_figures)):
        return None
    return {"test": test}


def ratio_figures(context: PageContext) -> list[list[dict[str, Any]]]:
    """Draw, for each panel, the ratios of each method's best setting (its first seed)."""
    return [_of_panel(context, panel) for panel in context.panels]


def _of_panel(context: PageContext, panel: Panel) -> list[dict[str, Any]]:
    references = {
        name: None if row is None else _ratios(context, row)
        for name, row in (("retain model", panel.retain), ("start model", panel.fine_tuned))
    }
    found: list[dict[str, Any]] = []
    for best in panel.best:
        if best.setting is None or (own := _ratios(context, best.setting.rows[0])) is None:
            continue
        row = best.setting.rows[0]
        slot = context.style.slots[best.family]
        tags = meta("curve", best.family, row.learning_rate, slot=slot, alpha=1.0)
        figure = draw(best.family, own, tags, references)
        figure["family"] = best.family
        figure["layout"]["title"]["text"] = (
            f"{best.family}, lr {rate_text(row.learning_rate)}, epoch {row.epoch}"
        )
        found.append(figure)
    return found


def _ratios(context: PageContext, row: TableRow) -> FloatArray | None:
    """Compute a model's ratios; None if they are not known, or by a profile unknown here."""
    evaluation = context.evaluations.evaluations.get((row.run_id, row.epoch))
    profile = next(one.profile for one in context.report.records if one.id == row.run_id)
    try:
        return None if evaluation is None else ratios_of(evaluation, profile_of_id(profile))
    except EvaluationError:
        return None


SECTION = ReportSection(
    "truth_ratios", "ratios", "Truth ratios", _values, lazy_data=lambda c: c.once(ratio_figures)
)
