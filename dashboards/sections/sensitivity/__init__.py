"""Plot of what a method keeps and forgets by its learning rate, or by a hyper-parameter."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from unlearnbench.analysis.best_settings import Setting, panel_label
from unlearnbench.analysis.sensitivity import RATE, Dependence, MethodSensitivity, sensitivities
from unlearnbench.api.benchmark import HeadlineMetric

from ...figures.marks import Figure, level, small_layout, trace
from ...figures.palette import DASHES, Style, meta
from ...formatting import rate_text, value_text
from ...html_table import Column, HtmlTable, number_column
from ...report_section import PageContext, Section, of_place

Line = MethodSensitivity


class SensitivitySection(Section):
    """Ranges over the settings of each method; absent where every method has one setting."""

    name, title, order, folder = "sensitivity", "Sensitivity", 70, "sensitivity"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Make the table."""
        methods = _methods(context)
        if not methods:
            return None
        headline, rows = context.report.headline, context.report.rows
        columns: list[Column[Line]] = [Column("Method", lambda item: item.family, align="")]
        if len(context.panels) > 1:
            columns.append(
                Column(
                    "Panel", lambda item: panel_label(item.model, item.forget_fraction), align=""
                )
            )
        columns.append(Column("Settings", lambda item: str(len(item.settings))))
        for metric in (headline.forgotten, headline.kept):
            columns += _columns(metric)
        table = HtmlTable(
            id="sensitivity",
            label="Ranges over settings",
            columns=tuple(columns),
            lines=methods,
            family=lambda item: item.family,
            panel=lambda item: context.panel_number(item.model, item.forget_fraction),
        )
        alone = {r.family for r in rows if r.kind == "run"} - {m.family for m in methods}
        return {"table": table, "headline": headline, "alone": sorted(alone)}

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel: of a method by each of its hyper-parameters."""
        headline, result = context.report.headline, list[list[Figure]]()
        for panel in context.panels:
            start = {headline.forgotten: panel.start.quality, headline.kept: panel.start.utility}
            result.append(
                [
                    {"family": item.family, **draw(item, by, of, start[of], context.style)}
                    for item in of_place(_methods(context), panel)
                    for by in item.dependences
                    for of in (headline.forgotten, headline.kept)
                ]
            )
        return result


@lru_cache(maxsize=1)
def _methods(context: PageContext) -> tuple[MethodSensitivity, ...]:
    return sensitivities(context.report.panels)


def _columns(metric: HeadlineMetric) -> list[Column[Line]]:
    """Make the columns of a number of the headline: its range, and the ends of it."""

    def end(line: Line, location: int) -> float | None:
        span = line.span(metric.column)
        return None if span is None else (*span, span[1] - span[0])[location]

    return [
        number_column(
            f"{metric.short} range", lambda item: end(item, 2), metric.digits, "num strong"
        ),
        number_column("from", lambda item: end(item, 0), metric.digits),
        number_column("to", lambda item: end(item, 1), metric.digits),
    ]


_MANY = 6
"""Most values that the axis names one by one."""


def draw(
    method: MethodSensitivity, by: Dependence, of: HeadlineMetric, start: float | None, style: Style
) -> Figure:
    """Draw a number of the headline by one hyper-parameter: means as lines, seeds as points.

    start  the start model's number, the dotted level
    """
    text = rate_text if by.name == RATE else value_text
    values = [by.value(item) for line in by.lines for item in line]
    numeric = all(type(v) in (int, float) for v in values)
    axis: dict[str, Any] = {"type": "linear" if numeric else "category"}
    if numeric and min(values) > 0 and (by.name == RATE or max(values) >= 10 * min(values)):
        axis["type"] = "log"
    if numeric and len({*values}) <= _MANY:
        distinct = sorted({*values})
        axis |= {"tickvals": distinct, "ticktext": [text(v) for v in distinct]}
    layout = small_layout(f"{method.family}: {of.short}", by.name, **axis)
    if start is not None:
        layout["shapes"] = [level("start", start, "dot")]

    def at(setting: Setting) -> Any:
        return by.value(setting) if numeric else text(by.value(setting))

    traces: list[Figure] = []
    for number, line in enumerate(by.lines):
        traces += _traces(method, by, line, [at(item) for item in line], of, style, number)
    return {"data": traces, "layout": layout}


def _traces(
    method: MethodSensitivity,
    by: Dependence,
    line: Sequence[Setting],
    x: Sequence[Any],
    of: HeadlineMetric,
    style: Style,
    number: int,
) -> list[Figure]:
    first, colour = line[0], style.colour(method.family)
    rate = "" if by.name == RATE else f", rate {rate_text(first.learning_rate)}"
    name = f"{method.family if by.name == RATE and len(by.lines) == 1 else first.method}{rate}"
    at = f"{escape(by.name)} %{{x}}: %{{y:.4g}}"
    tags = meta("own", method.family, slot=style.slots[method.family], alpha=0.9)
    means = trace(
        x,
        [item.metrics[of.column] for item in line],
        name,
        f"%{{fullData.name}}<br>{at}, mean of {max(len(item.rows) for item in line)}",
        mode="lines+markers",
        line={"color": colour, "width": 1.6, "dash": DASHES[number % len(DASHES)]},
        marker={"color": colour, "size": 6},
        meta=tags,
    )
    seeds = [
        (location, row)
        for location, item in zip(x, line, strict=True)
        for row in item.rows
        if len(item.rows) > 1
    ]
    points = trace(
        [location for location, _ in seeds],
        [row.metrics[of.column] for _, row in seeds],
        name,
        f"%{{text}}, {at}",
        mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.4},
        text=[f"seed {row.seed}" for _, row in seeds],
        meta=tags,
    )
    return [means, points] if seeds else [means]
