"""The report as one HTML file that opens from disk and loads nothing from anywhere else.

The page is a frame around its sections (`sections/`). Plotly is embedded once, compressed. Data
that every section needs is embedded as JSON; curves, losses, answers and configurations are
compressed, and loaded when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unlearnbench.analysis.best_settings import panel_label, rows_with_valid_start
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import Headline
from unlearnbench.results.outcomes import tally
from unlearnbench.results.table import TableRow

from .figures.palette import PALETTE
from .figures.tradeoff_plot import draw
from .formatting import prose, rate_text, short
from .metric_columns import digits, set_title
from .page_budget import initial_selection
from .page_data import compressed, compressed_size, to_json
from .report_section import PageContext, ReportSection
from .sections import SECTIONS

SCRIPTS = (
    *("core.js", "theme.js", "plots.js", "small_plots.js", "view_state.js", "swatches.js"),
    *("bar.js", "filters.js", "tables.js", "run_selection.js"),
)
"""Shared scripts, in the order in which they depend on each other; those of sections follow."""
MAX_BYTES = 7_900_000
"""Size limit of the page; answers that would exceed it are left out, and counted."""
_FRAME_BYTES = 250_000
"""Reserved for everything but Plotly and data."""
FIRST = ("kind", "method", "model", "forget_fraction", "learning_rate", "seed", "epoch")
LAST = ("status", "run_id", "family")
"""The fields of a row around the benchmark's own numbers."""


def build(report: Results) -> str:
    """Build the whole page."""
    context = PageContext.of(report)
    found = [(section, _render(section, context)) for section in SECTIONS]
    parts = [part for _, part in found if part is not None]
    shown = [section for section, part in found if part is not None]
    # Without `<`, no text in the data can end its script element.
    data = Markup(to_json(_data(context, shown)).replace("<", "\\u003c"))
    room = MAX_BYTES - _FRAME_BYTES - len(_plotly()) - len(data.encode())
    shared = (f"templates/{name}" for name in SCRIPTS)
    return render(
        "templates/page.html.j2",
        report=report,
        kept=report.headline.kept,
        forgotten=report.headline.forgotten,
        status=_status(report),
        sections=parts,
        styles=_joined("templates/page.css", *_section_files(".css", shown)),
        scripts=_joined(*shared, *_section_files(".js", shown), "templates/startup.js"),
        data=data,
        lazy_data=compressed(to_json(_lazy_data(context, room, shown))),
        plotly=_plotly(),
        version=version("unlearnbench"),
    )


def _render(section: ReportSection, context: PageContext) -> Mapping[str, Any] | None:
    """Print a section; None if it is left out."""
    values = section.values(context)
    if values is None:
        return None
    template = f"sections/{section.folder}/section.html.j2"
    return {
        "id": section.id,
        "title": section.title,
        "nav": section.nav or section.title,
        "body": Markup(
            render(
                template,
                place=panel_label,
                panel_number=context.panel_number,
                rate=rate_text,
                prose=prose,
                **values,
            )
        ),
    }


def render(template: str, /, **values: Any) -> str:
    """Fill a template in, by its path."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _resource(path: str) -> str:
    return files(__package__ or "dashboards").joinpath(path).read_text(encoding="utf-8")


def _section_files(suffix: str, sections: Iterable[ReportSection]) -> Iterator[str]:
    """List the files of sections with a suffix, by section and name."""
    for section in sections:
        folder = f"sections/{section.folder}"
        found = files(__package__ or "dashboards").joinpath(folder).iterdir()
        yield from sorted(f"{folder}/{one.name}" for one in found if one.name.endswith(suffix))


def _joined(*paths: str) -> Markup:
    return Markup("\n".join(map(_resource, paths)))


def _status(report: Results) -> str:
    """Count the runs by how they ended."""
    text = tally((r.status for r in report.records if r.kind == "run"), report.planned)
    if not report.unplanned:
        return text
    return f"{text}; {report.unplanned} in the folder that are not in the present plan left out"


def _data(context: PageContext, sections: Sequence[ReportSection] = SECTIONS) -> dict[str, Any]:
    """Collect the data that scripts read at once."""
    report, style, columns = context.report, context.style, context.columns
    fields = (*FIRST, *(one.name for one in columns.own), *LAST)
    rates = {r.learning_rate for r in report.rows if r.kind == "run"}
    return {
        "palette": [list(pair) for pair in PALETTE],
        "families": style.slots,
        "shapes": {name: style.shape(name) for name in style.slots},
        "links": dict(report.links),
        "rates": {rate_text(r): style.dashes[r] for r in sorted(rates, key=lambda r: r or 0.0)},
        "panels": [
            {
                "model": panel.model,
                "fraction": panel.forget_fraction,
                "figure": draw(panel, style, context.panel_height).to_plotly_json(),
                "low": min((s.forgotten or 0.0 for s in panel.below), default=None),
            }
            for panel in context.panels
        ],
        "columns": list(fields),
        "rows": [_cells(row, fields) for row in report.rows],
        "metrics": {
            one.name: {
                "label": one.label,
                "digits": digits(one, (row.metrics[one.name] for row in report.rows)),
            }
            for one in columns.all
        },
        "headline": _axes(report.headline),
        "retain": any(panel.retain for panel in context.panels),
        "forget": [*columns.schema.sets("forget")],
        "compared": [one.name for one in columns.compared],
        "sets": {**columns.sets, **_other_sets(context)},
        "measures": {columns.label(n): by for n, by in columns.measures(columns.own).items()},
        "first": initial_selection(rows_with_valid_start(report.rows)),
        "sections": {one.id: one.data(context) for one in sections if one.data is not None},
    }


def _other_sets(context: PageContext) -> dict[str, str]:
    """Name the evaluated sets that the benchmark does not have, as those of early records."""
    evaluated = (name for one in context.evaluations.evaluations.values() for name in one.sets)
    known = context.columns.schema.roles
    return {name: set_title(name) for name in dict.fromkeys(evaluated) if name not in known}


def _axes(headline: Headline) -> list[dict[str, Any]]:
    """Describe the numbers of the headline, kept and forgotten; `name` is for narrow tables."""
    kept, forgotten = headline.kept, headline.forgotten
    return [
        {"column": one.column, "label": one.label, "digits": one.digits, "name": name}
        for one, name in ((kept, kept.label), (forgotten, forgotten.short))
    ]


def _cells(row: TableRow, fields: Iterable[str]) -> list[Any]:
    values = vars(row) | dict(row.metrics)
    found = (values[name] for name in fields)
    return [short(value, 6) if isinstance(value, float) else value for value in found]


def _lazy_data(
    context: PageContext, room: int, sections: Sequence[ReportSection] = SECTIONS
) -> Mapping[str, Any]:
    """Collect the data loaded on demand in at most `room` bytes, as far as it can be cut."""
    data = {one.id: one.lazy_data(context) for one in sections if one.lazy_data is not None}
    for one in sections:
        if one.lazy_data_within is not None:
            data[one.id] = one.lazy_data_within(context, room - compressed_size(data))
    return data


@cache
def _plotly() -> str:
    return compressed(get_plotlyjs())
