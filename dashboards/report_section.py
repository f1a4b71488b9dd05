"""Base of the sections of this package: values shared for a report, and a template."""

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
    _read: dict[tuple[str, int], Evaluation | None] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, report: Results) -> PageContext:
        """Return the context of a report; that of the last one is kept."""
        if not _latest or _latest[0].report is not report:
            shown = drawn_panels(report.panels)
            columns = PageColumns.of(report.rows, report.schema)
            _latest[:] = [cls(report, Style.of(report.rows, report.records), shown, columns)]
        return _latest[0]

    @property
    def best(self) -> list[Setting]:
        """The best setting of each method on each panel."""
        return [item.setting for panel in self.panels for item in panel.best if item.setting]

    def panel_number(self, model: str, split: SplitKey) -> int:
        """Look up a panel's number on the page, by which it is chosen; -1 if it has no numbers."""
        numbers = {panel.panel: number for number, panel in enumerate(self.panels)}
        return numbers.get((model, split), -1)

    def rows_of(self, panel: Any) -> list[TableRow]:
        """List the rows of a panel."""
        return of_place(self.report.rows, panel)

    def records_of(self, panel: Any) -> list[Record]:
        """List the records of a panel."""
        return of_place(self.report.records, panel)

    def evaluation(self, run: str, epoch: int) -> Evaluation | None:
        """Read an evaluation from its record, once."""
        if (run, epoch) not in self._read:
            record = next(item for item in self.report.records if item.id == run)
            self._read[run, epoch] = record.evaluations.get(epoch)
        return self._read[run, epoch]


_latest: list[PageContext] = []


def of_place(result: Iterable[_T], panel: Any) -> list[_T]:
    """List what is of the same model and split as a panel."""
    location = attrgetter("model", "forget_fraction")
    return [item for item in result if location(item) == location(panel)]


class Section(ReportSection):
    """A section of this package.

    Its folder has the template `section.html.j2`, and scripts and styles if it has any: every
    `*.js` and `*.css` is included, in the order of their names. Scripts run behind the template.
    """

    folder: ClassVar[str]
    """Name of the folder in `sections/`."""

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Compute the template's values; None leaves the section out."""
        return {}

    def data(self, context: PageContext) -> Any:
        """Collect what scripts load by `page.lazyData(name)`; None without any."""

    def render(self, results: Results) -> str:
        """Fill the template in, with data, styles and scripts behind it."""
        context = PageContext.of(results)
        values = self.values(context)
        if values is None:
            return ""
        folder = f"sections/{self.folder}"
        body = render(
            f"{folder}/section.html.j2",
            panel_number=context.panel_number,
            **{"unit": results.unit, **values},
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
