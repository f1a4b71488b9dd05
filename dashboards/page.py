"""The report as one HTML file that opens from disk and loads nothing from anywhere else.

The page is a frame around its sections, which are plug-ins (`api/report_section.py`). Plotly is
embedded once and compressed. The data that only one section's scripts load are compressed too. The
rows, which every section needs, are embedded as plain JSON.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.results import Results
from unlearnbench.analysis.setting_order import merit_of
from unlearnbench.analysis.settings import Setting
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Headline, HeadlineMetric
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
    "core.js",
    "theme.js",
    "plots.js",
    "small_plots.js",
    "view_state.js",
    "swatches.js",
    "line_legend.js",
    "filters.js",
    "tables.js",
    "run_selection.js",
    "startup.js",
)
"""Shared scripts, each after the scripts that it needs. The scripts of sections follow."""
HEIGHT = 440
"""Pixels of a trade-off panel. One panel fits on the first screen of the page."""
FIRST = ("kind", "method", "model", "forget_fraction", "learning_rate", "seed", "epoch")
"""The fields of a row before the benchmark's metrics."""
LAST = ("status", "run_id", "family")
"""The fields of a row after the benchmark's metrics."""
_DIGITS = 6
"""Significant digits of a metric in the page's data. The page shows fewer."""

MeansOfSetting = tuple[list[int], list[float | None]]
"""A setting for scripts: positions of its rows in `rows`, and a mean for each column in `means`."""


def sections() -> list[ReportSection]:
    """Make the installed sections, in their order."""
    installed: list[ReportSection] = [
        registry.load("sections", name)() for name in registry.names("sections")
    ]
    return sorted(installed, key=lambda section: section.order)


def build(report: Results) -> str:
    """Build the whole page."""
    filled_sections: list[tuple[ReportSection, Markup]] = []
    for section in sections():
        with plugin_code(f"`render` of the section {section.name!r}"):
            if not all(getattr(report, name) for name in section.needs):
                continue
            body = section.render(report)
            if body:
                filled_sections.append((section, Markup(body)))
    return render(
        "templates/page.html.j2",
        report=report,
        kept=report.headline.kept,
        forgotten=report.headline.forgotten,
        status=_status(report),
        sections=filled_sections,
        styles=joined("templates/page.css"),
        scripts=joined(*(f"templates/{name}" for name in SCRIPTS)),
        data=embedded(_data(PageContext.of(report))),
        plotly=plotly(),
        version=version("unlearnbench"),
    )


def _status(report: Results) -> str:
    """Count the runs by how they ended, in one sentence."""
    statuses = (record.status for record in report.records if record.kind == "run")
    counts = tally(statuses, report.planned)
    if not report.unplanned:
        return counts
    return f"{counts}; {report.unplanned} in the folder that are not in the present plan left out"


def _data(context: PageContext) -> dict[str, Any]:
    """Collect the data that scripts read when the page opens.

    Data that only one section needs is loaded later, see `Section.data`. The order of the keys is
    part of the page.
    """
    return {
        **_appearance(context),
        "panels": _panel_figures(context),
        **_numbers(context),
        **_roles(context),
        **_best_two(context),
    }


def _appearance(context: PageContext) -> dict[str, Any]:
    """Describe how methods and learning rates are drawn, and which records have a link."""
    report = context.report
    style = context.style
    learning_rates = {row.learning_rate for row in report.rows if row.kind == "run"}
    dashes: dict[str, str] = {}
    for learning_rate in sorted(learning_rates, key=lambda rate: rate or 0.0):
        dashes[rate_text(learning_rate)] = style.dashes[learning_rate]
    return {
        "unit": report.unit,
        "palette": [list(colours) for colours in PALETTE],
        "families": style.slots,
        "shapes": {family: style.shape(family) for family in style.slots},
        "links": dict(report.links),
        "rates": dashes,
    }


def _panel_figures(context: PageContext) -> list[dict[str, Any]]:
    """Draw the trade-off of each panel."""
    return [
        {
            "model": panel.model,
            "fraction": panel.forget_fraction,
            "figure": draw(panel, context.style, HEIGHT),
        }
        for panel in context.panels
    ]


def _numbers(context: PageContext) -> dict[str, Any]:
    """Collect the numbers that the scripts of all sections share.

    Names are listed once, and rows and settings are lists in the order of the names. This keeps the
    page of a large sweep small.

    Returns:
        The values by key:

        - `columns`: names of the cells of a row, such as `method`, `seed` and `model_utility`.
        - `rows`: a list of cells for each row of the table.
        - `means`: names of the benchmark's own metrics, which each setting has a mean of.
        - `settings`: rows and means of each setting, see `_settings`.
        - `metrics`: label and decimals of every column that has a number.
    """
    own_metrics = [column.name for column in context.columns.own]
    fields = (*FIRST, *own_metrics, *LAST)
    return {
        "columns": list(fields),
        "rows": [_cells(row, fields) for row in context.report.rows],
        "means": own_metrics,
        "settings": _settings(context, own_metrics),
        "metrics": _metric_formats(context),
    }


def _metric_formats(context: PageContext) -> dict[str, dict[str, Any]]:
    """Say by which label and with how many decimals each metric is shown."""
    formats: dict[str, dict[str, Any]] = {}
    for column in context.columns.all:
        values = [row.metrics[column.name] for row in context.report.rows]
        formats[column.name] = {"label": column.label, "digits": digits(column, values)}
    return formats


def _roles(context: PageContext) -> dict[str, Any]:
    """Say which columns and evaluation sets play which role on the page."""
    columns = context.columns
    return {
        "headline": _axes(context.report.headline),
        "retain": any(panel.retain for panel in context.panels),
        "forget": [*columns.schema.sets("forget")],
        "compared": [column.name for column in columns.compared],
        "sets": columns.sets,
    }


def _best_two(context: PageContext) -> dict[str, Any]:
    """Name the two evaluations that *Answers* shows at first, by run and epoch."""
    first, second = _first_two(context)
    return {"first": _evaluation_of(first), "second": _evaluation_of(second)}


def _evaluation_of(setting: Setting | None) -> tuple[str, int] | None:
    """Return the run of the setting's first seed, and the setting's epoch."""
    return None if setting is None else (setting.rows[0].run_id, setting.epoch)


def _first_two(context: PageContext) -> tuple[Setting | None, Setting | None]:
    """Return the best setting of the page, and the best one of another method on its panel.

    *Answers* shows them side by side. Each is None if there is no such setting.
    """
    ranked: list[Setting] = []
    for panel in context.panels:
        ranked += [best.ranked for best in panel.best if best.ranked is not None]
    if not ranked:
        return None, None
    first = max(ranked, key=lambda setting: merit_of(setting) or ())
    for setting in ranked:
        if setting.panel == first.panel and setting is not first:
            return first, setting
    return first, None


def _settings(context: PageContext, metrics: Sequence[str]) -> list[MeansOfSetting]:
    """List the settings after each epoch: positions of their rows, and means of the metrics.

    Scripts look up the mean of a row's setting here. If several entries have the same row, the last
    one counts. A row without an entry shows its own numbers.
    """
    position_of_row: dict[tuple[str, int], int] = {}
    for position, row in enumerate(context.report.rows):
        position_of_row[row.run_id, row.epoch] = position

    entries: list[MeansOfSetting] = []
    for setting in _settings_with_means(context):
        positions = [position_of_row[row.run_id, row.epoch] for row in setting.rows]
        means = [short(setting.metrics[name], _DIGITS) for name in metrics]
        entries.append((positions, means))
    return entries


def _settings_with_means(context: PageContext) -> Iterator[Setting]:
    """Yield the settings of all panels, and then the choices of `select` or `tune`.

    The mean of a choice covers only the seeds that report it. The choices come last, so that the
    card of one of their rows shows this mean and not that of all seeds.
    """
    for panel in context.panels:
        for setting in panel.settings:
            if _has_means(setting):
                yield setting
    for panel in context.panels:
        for best in panel.best:
            if best.choice is not None and best.setting is not None:
                yield best.setting


def _has_means(setting: Setting) -> bool:
    """Whether the setting has other numbers than its only row."""
    return len(setting.rows) != 1 or setting.metrics is not setting.rows[0].metrics


def _axes(headline: Headline) -> list[dict[str, Any]]:
    """Describe the two headline metrics: first utility, then forgetting."""
    return [
        _axis(headline.kept, headline.kept.label),
        _axis(headline.forgotten, headline.forgotten.short),
    ]


def _axis(metric: HeadlineMetric, name_in_tables: str) -> dict[str, Any]:
    """Describe a headline metric, with its full label for axes and a name for narrow tables."""
    return {
        "column": metric.column,
        "label": metric.label,
        "digits": metric.digits,
        "name": name_in_tables,
    }


def _cells(row: TableRow, fields: Iterable[str]) -> list[Any]:
    """List the values of a row's fields, with rounded metrics."""
    values = vars(row) | dict(row.metrics)
    cells: list[Any] = []
    for name in fields:
        value = values[name]
        # Filters compare learning rates and splits, so these keep all their digits.
        is_metric = isinstance(value, float) and name not in FIRST
        cells.append(short(value, _DIGITS) if is_metric else value)
    return cells
