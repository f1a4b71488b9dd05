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
    """The distributions of truth ratios, where the headline has a test of them."""

    name, title, order, folder = "ratios", "Truth ratios", 90, "truth_ratios"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Name the headline's test."""
        test = context.report.headline.forgotten.test
        return {"test": test} if test is not None and any(_figures(context)) else None

    def data(self, context: PageContext) -> Any:
        """Draw, for each panel, the ratios of each method's best setting (its first seed)."""
        return _figures(context)


@lru_cache(maxsize=1)
def _figures(context: PageContext) -> list[list[Figure]]:
    return [_of_panel(context, panel) for panel in context.panels]


def _of_panel(context: PageContext, panel: TradeOffPanel) -> list[Figure]:
    references = {
        name: None if row is None else _ratios(context, row)
        for name, row in (("retain model", panel.retain), ("start model", panel.fine_tuned))
    }
    figures: list[Figure] = []
    for best in panel.best:
        if best.setting is None or (part := _ratios(context, best.setting.rows[0])) is None:
            continue
        row = best.setting.rows[0]
        slot = context.style.slots[best.family]
        tags = meta("curve", best.family, row.learning_rate, slot=slot, alpha=1.0)
        figure = draw(best.name, part, tags, references)
        figure["family"] = best.family
        figure["layout"]["title"]["text"] = (
            f"{best.name}, lr {rate_text(row.learning_rate)}, {row.when}"
        )
        figures.append(figure)
    return figures


def _ratios(context: PageContext, row: TableRow) -> FloatArray | None:
    profile = next(record.profile for record in context.report.records if record.id == row.run_id)
    return ratios_of(context.evaluation(row.run_id, row.epoch), profile)
