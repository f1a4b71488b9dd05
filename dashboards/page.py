"""The report as one HTML file that opens from disk and loads nothing from anywhere else.

The page is a frame around its sections, which are plug-ins (`api/report_section.py`). Plotly is
embedded once, compressed, as is what a section's scripts load when they need it. The rows, which
every section needs, are embedded as JSON.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import Setting, merit_of
from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Headline
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.report_section import ReportSection
from unlearnbench.results.outcomes import tally
from unlearnbench.results.table import TableRow

from .figures.palette import PALETTE
from .figures.tradeoff_plot import draw
from .formatting import rate_text, short
from .metric_columns import digits
from .page_data import embedded, joined, plotly, render
from .report_section import PageContext

SCRIPTS = (
    *("core.js", "theme.js", "plots.js", "small_plots.js", "view_state.js", "swatches.js"),
    *("line_legend.js", "filters.js", "tables.js", "run_selection.js", "startup.js"),
)
"""Shared scripts, in the order in which they depend on each other; those of sections follow."""
HEIGHT = 440
"""Pixels of a trade-off panel: the first screen of a page has one in full."""
FIRST = ("kind", "method", "model", "forget_fraction", "learning_rate", "seed", "epoch")
LAST = ("status", "run_id", "family")
"""The fields of a row around the benchmark's own numbers."""


def sections() -> list[ReportSection]:
    """Make the installed sections, in their order."""
    made: list[ReportSection] = [
        registry.load("sections", name)() for name in registry.names("sections")
    ]
    return sorted(made, key=lambda item: item.order)


def build(report: Results) -> str:
    """Build the whole page."""
    parts: list[tuple[ReportSection, Markup]] = []
    for section in sections():
        with plugin_code(f"`render` of the section {section.name!r}"):
            if not all(getattr(report, name) for name in section.needs):
                continue
            if body := section.render(report):
                parts.append((section, Markup(body)))
    return render(
        "templates/page.html.j2",
        report=report,
        kept=report.headline.kept,
        forgotten=report.headline.forgotten,
        status=_status(report),
        sections=parts,
        styles=joined("templates/page.css"),
        scripts=joined(*(f"templates/{name}" for name in SCRIPTS)),
        data=embedded(_data(PageContext.of(report))),
        plotly=plotly(),
        version=version("unlearnbench"),
    )


def _status(report: Results) -> str:
    """Count the runs by how they ended."""
    text = tally((r.status for r in report.records if r.kind == "run"), report.planned)
    if not report.unplanned:
        return text
    return f"{text}; {report.unplanned} in the folder that are not in the present plan left out"


def _data(context: PageContext) -> dict[str, Any]:
    """Collect the data that scripts read at once."""
    report, style, columns = context.report, context.style, context.columns
    own = [column.name for column in columns.own]
    fields = (*FIRST, *own, *LAST)
    rates = {r.learning_rate for r in report.rows if r.kind == "run"}
    first, second = _first_two(context)
    return {
        "unit": report.unit,
        "palette": [list(pair) for pair in PALETTE],
        "families": style.slots,
        "shapes": {name: style.shape(name) for name in style.slots},
        "links": dict(report.links),
        "rates": {rate_text(r): style.dashes[r] for r in sorted(rates, key=lambda r: r or 0.0)},
        "panels": [
            {
                "model": panel.model,
                "fraction": panel.forget_fraction,
                "figure": draw(panel, style, HEIGHT),
            }
            for panel in context.panels
        ],
        "columns": list(fields),
        "rows": [_cells(row, fields) for row in report.rows],
        "means": own,
        "settings": _settings(context, own),
        "metrics": {
            column.name: {
                "label": column.label,
                "digits": digits(column, (row.metrics[column.name] for row in report.rows)),
            }
            for column in columns.all
        },
        "headline": _axes(report.headline),
        "retain": any(panel.retain for panel in context.panels),
        "forget": [*columns.schema.sets("forget")],
        "compared": [column.name for column in columns.compared],
        "sets": columns.sets,
        "first": None if first is None else (first.rows[0].run_id, first.epoch),
        "second": None if second is None else (second.rows[0].run_id, second.epoch),
    }


def _first_two(context: PageContext) -> tuple[Setting | None, Setting | None]:
    """Return the best setting of the page and the next one of its panel, which *Answers* shows."""
    ranked = [best.ranked for panel in context.panels for best in panel.best if best.ranked]
    if not ranked:
        return None, None
    first = max(ranked, key=lambda setting: merit_of(setting) or ())
    rivals = [setting for setting in ranked if setting.panel == first.panel]
    return first, next((setting for setting in rivals if setting is not first), None)


def _settings(context: PageContext, names: Sequence[str]) -> list[tuple[list[int], list[Any]]]:
    """List the settings after each epoch: the positions of their rows, and their means by column.

    A setting of one row is left out if its means are the row's numbers. The choices of `select` or
    `tune` come last, because a card of their rows shows them: the mean of the seeds that report it.
    """
    places = {(row.run_id, row.epoch): place for place, row in enumerate(context.report.rows)}
    settings: list[tuple[list[int], list[Any]]] = []
    for panel in context.panels:
        for setting in panel.settings:
            is_one_row = len(setting.rows) == 1 and setting.metrics is setting.rows[0].metrics
            if not is_one_row:
                of_rows = [places[row.run_id, row.epoch] for row in setting.rows]
                settings.append((of_rows, [short(setting.metrics[name], 6) for name in names]))
    for panel in context.panels:
        for best in panel.best:
            if best.choice is not None and best.setting is not None:
                of_rows = [places[row.run_id, row.epoch] for row in best.setting.rows]
                means = [short(best.setting.metrics[name], 6) for name in names]
                settings.append((of_rows, means))
    return settings


def _axes(headline: Headline) -> list[dict[str, Any]]:
    """Describe the numbers of the headline, kept and forgotten; `name` is for narrow tables."""
    kept, forgotten = headline.kept, headline.forgotten
    return [
        {"column": item.column, "label": item.label, "digits": item.digits, "name": name}
        for item, name in ((kept, kept.label), (forgotten, forgotten.short))
    ]


def _cells(row: TableRow, fields: Iterable[str]) -> list[Any]:
    values = vars(row) | dict(row.metrics)
    cells: list[Any] = []
    for name in fields:
        value = values[name]
        # Filters compare learning rates and splits, so these have all their digits.
        is_number = isinstance(value, float) and name not in FIRST
        cells.append(short(value, 6) if is_number else value)
    return cells
