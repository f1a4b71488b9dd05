"""Base class of the sections of this package, and the values that they share on a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from markupsafe import Markup

from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import Setting
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.report_section import ReportSection
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

from .figures.palette import Style
from .figures.tradeoff_data import TradeOffPanel, drawn_panels
from .metric_columns import PageColumns
from .page_data import compressed, files_of, joined, render, to_json

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class PageContext:
    """A report, and what is derived from it once for all sections."""

    report: Results
    style: Style
    panels: tuple[TradeOffPanel, ...]
    columns: PageColumns
    _evaluations: dict[tuple[str, int], Evaluation | None] = field(default_factory=dict, repr=False)
    """The evaluations that were read so far, by run and epoch. None if there is none."""

    @classmethod
    def of(cls, report: Results) -> PageContext:
        """Return the context of a report.

        Sections get only the report, so the last context is kept for the next section of the same
        page.
        """
        if not _latest or _latest[0].report is not report:
            style = Style.of(report.rows, report.records)
            panels = drawn_panels(report.panels)
            columns = PageColumns.of(report.rows, report.schema)
            _latest[:] = [cls(report, style, panels, columns)]
        return _latest[0]

    @property
    def best(self) -> list[Setting]:
        """The best setting of each method on each panel."""
        settings: list[Setting] = []
        for panel in self.panels:
            settings += [best.setting for best in panel.best if best.setting is not None]
        return settings

    def panel_number(self, model: str, split: SplitKey) -> int:
        """Look up the number by which the page chooses a panel; -1 if there is no such panel."""
        number_of_panel = {panel.panel: number for number, panel in enumerate(self.panels)}
        return number_of_panel.get((model, split), -1)

    def rows_of(self, panel: Any) -> list[TableRow]:
        """List the rows of a panel."""
        return of_place(self.report.rows, panel)

    def records_of(self, panel: Any) -> list[Record]:
        """List the records of a panel."""
        return of_place(self.report.records, panel)

    def evaluation(self, run: str, epoch: int) -> Evaluation | None:
        """Read an evaluation from its record, once."""
        key = run, epoch
        if key not in self._evaluations:
            record = next(record for record in self.report.records if record.id == run)
            self._evaluations[key] = record.evaluations.get(epoch)
        return self._evaluations[key]


_latest: list[PageContext] = []
"""The context of the last page; empty before the first one."""


def of_place(candidates: Iterable[_T], panel: Any) -> list[_T]:
    """List the candidates that have the model and the split of a panel."""
    place = attrgetter("model", "forget_fraction")
    return [candidate for candidate in candidates if place(candidate) == place(panel)]


class Section(ReportSection):
    """A section of this package.

    Its folder has the template `section.html.j2`. Every `*.js` and `*.css` file of the folder is
    included, in the order of the names. Scripts run after the template is part of the page.
    """

    folder: ClassVar[str]
    """Name of the folder in `sections/`."""

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Compute the values of the template's names. None leaves the section out."""
        return {}

    def data(self, context: PageContext) -> Any:
        """Collect the data that scripts load by `page.lazyData(name)`. None if there is none."""

    def render(self, results: Results) -> str:
        """Fill the template in, and add data, styles and scripts."""
        context = PageContext.of(results)
        values = self.values(context)
        if values is None:
            return ""
        folder = f"sections/{self.folder}"
        # A section may have a value of its own for `unit`.
        values_with_unit = {"unit": results.unit, **values}
        body = render(
            f"{folder}/section.html.j2", panel_number=context.panel_number, **values_with_unit
        )
        data = self.data(context)
        return render(
            "templates/section.html.j2",
            name=self.name,
            body=Markup(body),
            data="" if data is None else compressed(to_json(data)),
            styles=joined(*files_of(folder, ".css")),
            scripts=joined(*files_of(folder, ".js")),
        )
