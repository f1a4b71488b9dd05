"""The contract of a section of the page, and the values that all sections share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from unlearnbench.analysis.order_confidence import OrderConfidence
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

from .figures.tradeoff_data import Panel, panels
from .figures.tradeoff_plot import Style
from .metric_columns import PageColumns
from .page_budget import EmbeddedEvaluations, embedded_evaluations

_T = TypeVar("_T")


class Placed(Protocol):
    """Part of a section for one model and split."""

    @property
    def model(self) -> str: ...
    @property
    def forget_fraction(self) -> SplitKey: ...


_P = TypeVar("_P", bound=Placed)


@dataclass(frozen=True)
class PageContext:
    """A report, and what is computed from it once for all sections."""

    report: Results
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
    def of(cls, report: Results) -> PageContext:
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
    def panel_height(self) -> int:
        """Height of a trade-off panel in pixels: the first screen of a page has one in full."""
        return 470 if len(self.panels) == 1 else 400

    def panel_number(self, model: str, split: SplitKey) -> int:
        """Look up a panel's number on the page, by which it is chosen."""
        places = [(one.model, one.forget_fraction) for one in self.panels]
        return places.index((model, split))

    def rows_of(self, panel: Placed) -> list[TableRow]:
        """List the rows of a panel."""
        return of_place(self.report.rows, panel)

    def records_of(self, panel: Placed) -> list[Record]:
        """List the records of a panel."""
        return of_place(self.report.records, panel)


def of_place(found: Iterable[_P], panel: Placed) -> list[_P]:
    """List what belongs to a panel."""
    place = (panel.model, panel.forget_fraction)
    return [one for one in found if (one.model, one.forget_fraction) == place]


def _is_ceu_benchmark(report: Results) -> bool:
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
    """Heading."""
    values: Callable[[PageContext], Mapping[str, Any] | None] = _no_values
    """Compute the template's values; None leaves the section out."""
    data: Callable[[PageContext], Any] | None = None
    """Compute the JSON that scripts read at once, as `page.data.sections[id]`."""
    lazy_data: Callable[[PageContext], Any] | None = None
    """Compute the JSON that is compressed, and that scripts load by `page.lazyData(id)`."""
    nav: str = ""
    """Shorter name in the navigation, where the heading is long."""
    lazy_data_within: Callable[[PageContext, int], Any] | None = None
    """Like `lazy_data`, cut to the bytes (compressed, in base 64) that are left for it."""
