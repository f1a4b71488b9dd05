"""Truth ratios: the two distributions that Forget Quality compares, at each best setting."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from unlearnbench.api.observations import FloatArray
from unlearnbench.results.table import TableRow

from ...figures.marks import Figure
from ...figures.palette import meta
from ...figures.tradeoff_data import TradeOffPanel
from ...figures.truth_ratio_plot import draw, ratios_of
from ...formatting import rate_text
from ...report_section import PageContext, Section


class TruthRatios(Section):
    """The distributions of truth ratios. Absent if the headline has no test that compares them."""

    name, title, order, folder = "ratios", "Truth ratios", 90, "truth_ratios"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Name the headline's test."""
        test = context.report.headline.forgotten.test
        if test is None or not any(_figures(context)):
            return None
        return {"test": test}

    def data(self, context: PageContext) -> Any:
        """Draw, for each panel, the ratios of each method's best setting (its first seed)."""
        return _figures(context)


@lru_cache(maxsize=1)
def _figures(context: PageContext) -> list[list[Figure]]:
    return [_figures_of_panel(context, panel) for panel in context.panels]


def _figures_of_panel(context: PageContext, panel: TradeOffPanel) -> list[Figure]:
    references = {
        "retain model": None if panel.retain is None else _ratios(context, panel.retain),
        "start model": None if panel.fine_tuned is None else _ratios(context, panel.fine_tuned),
    }
    figures: list[Figure] = []
    for best in panel.best:
        if best.setting is None:
            continue
        row = best.setting.rows[0]
        ratios = _ratios(context, row)
        if ratios is None:
            continue
        slot = context.style.slots[best.family]
        tags = meta("curve", best.family, row.learning_rate, slot=slot, alpha=1.0)
        figure = draw(best.name, ratios, tags, references)
        figure["family"] = best.family
        title = f"{best.name}, lr {rate_text(row.learning_rate)}, {row.when}"
        figure["layout"]["title"]["text"] = title
        figures.append(figure)
    return figures


def _ratios(context: PageContext, row: TableRow) -> FloatArray | None:
    """Compute the truth ratios of the forget questions after a row's epoch, [questions].

    Returns:
        None if the record has no such observations, or if a ratio is not defined.
    """
    profile = next(record.profile for record in context.report.records if record.id == row.run_id)
    return ratios_of(context.evaluation(row.run_id, row.epoch), profile)
