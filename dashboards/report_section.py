"""The contract of a section of the page, and the values that all sections share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from unlearnbench.analysis.order_confidence import OrderConfidence
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.evaluation.headlines import default_headline
from unlearnbench.reporting.report import Report
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

from .figures.label_placement import LARGE, MEDIUM, Size
from .figures.tradeoff_data import Panel, panels
from .figures.tradeoff_plot import Style
from .metric_columns import PageColumns
from .page_budget import EmbeddedEvaluations, embedded_evaluations

_T = TypeVar("_T")


@dataclass(frozen=True)
class PageContext:
    """A report, and what is computed from it once for all sections."""

    report: Report
    style: Style
    panels: tuple[Panel, ...]
    claims: OrderConfidence
    evaluations: EmbeddedEvaluations
    columns: PageColumns
    _computed: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False)

    def once(self, compute: Callable[[PageContext], _T]) -> _T:
        """Compute what several parts of the page need, the first time that it is needed."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        found: _T = self._computed[compute]
        return found

    @classmethod
    def of(cls, report: Report) -> PageContext:
        """Compute the values that sections share."""
        return cls(
            report=report,
            style=Style.of(report.rows),
            panels=panels(report.rows, published=_is_ceu_benchmark(report)),
            claims=report.claims,
            evaluations=embedded_evaluations(report.records, report.rows),
            columns=PageColumns.of(report.rows, report.schema),
        )

    @property
    def panel_size(self) -> Size:
        """Size of a trade-off panel's plot area, in pixels."""
        return LARGE if len(self.panels) == 1 else MEDIUM

    def panel_number(self, model: str, split: SplitKey) -> int:
        """Look up a panel's number on the page, by which it is chosen."""
        places = [(one.model, one.forget_fraction) for one in self.panels]
        return places.index((model, split))

    def rows_of(self, panel: Panel) -> list[TableRow]:
        """List the rows of a panel."""
        return [row for row in self.report.rows if _is_in(row, panel)]

    def records_of(self, panel: Panel) -> list[Record]:
        """List the records of a panel."""
        return [record for record in self.report.records if _is_in(record, panel)]


def _is_in(one: TableRow | Record, panel: Panel) -> bool:
    return (one.model, one.forget_fraction) == (panel.model, panel.forget_fraction)


def _is_ceu_benchmark(report: Report) -> bool:
    """Check whether the CE-U paper's points are comparable: TOFU's data, headline and rules."""
    sources = {r.spec.get("data", {}).get("source") for r in report.records if r.kind == "run"}
    own = sources == {"tofu"} and report.profile.startswith("tofu")
    return own and report.headline == default_headline()


def _no_values(_: PageContext) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class ReportSection:
    """One part of the page, with an entry in the navigation.

    Its folder holds the template `section.html.j2`, and scripts and styles if it has any: every
    `*.js` and `*.css` is included, in the order of their names, after those of `templates/`.
    """

    folder: str
    """Name of the folder in `sections/`."""
    id: str
    """Id of the HTML element, and of the section's data in scripts."""
    title: str
    """Heading, and name in the navigation."""
    values: Callable[[PageContext], Mapping[str, Any] | None] = _no_values
    """Compute the template's values; None leaves the section out."""
    data: Callable[[PageContext], Any] | None = None
    """Compute the JSON that scripts read at once, as `page.data.sections[id]`."""
    lazy_data: Callable[[PageContext], Any] | None = None
    """Compute the JSON that is compressed, and that scripts load by `page.lazyData(id)`."""
    lazy_data_within: Callable[[PageContext, int], Any] | None = None
    """Like `lazy_data`, cut to the bytes (compressed, in base 64) that are left for it."""
