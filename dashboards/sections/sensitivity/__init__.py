"""Plot of what a method keeps and forgets by its learning rate, or by a hyper-parameter."""

from __future__ import annotations

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
        columns: list[Column[Line]] = [Column("Method", lambda one: one.family, align="")]
        if len(context.panels) > 1:
            columns.append(
                Column("Panel", lambda one: panel_label(one.model, one.forget_fraction), align="")
            )
        columns.append(Column("Settings", lambda one: str(len(one.settings))))
        for metric in (headline.forgotten, headline.kept):
            columns += _columns(metric)
        table = HtmlTable(
            id="sensitivity",
            label="Ranges over settings",
            columns=tuple(columns),
            lines=methods,
            family=lambda one: one.family,
            panel=lambda one: context.panel_number(one.model, one.forget_fraction),
        )
        alone = {r.family for r in rows if r.kind == "run"} - {m.family for m in methods}
        return {"table": table, "headline": headline, "alone": sorted(alone)}

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel: of a method by each of its hyper-parameters."""
        headline, found = context.report.headline, list[list[Figure]]()
        for panel in context.panels:
            start = {headline.forgotten: panel.start.quality, headline.kept: panel.start.utility}
            found.append(
                [
                    {"family": one.family, **draw(one, by, of, start[of], context.style)}
                    for one in of_place(_methods(context), panel)
                    for by in one.dependences
                    for of in (headline.forgotten, headline.kept)
                ]
            )
        return found


@lru_cache(maxsize=1)
def _methods(context: PageContext) -> tuple[MethodSensitivity, ...]:
    return sensitivities(context.report.panels)


def _columns(metric: HeadlineMetric) -> list[Column[Line]]:
    """Make the columns of a number of the headline: its range, and the ends of it."""

    def end(one: Line, place: int) -> float | None:
        span = one.span(metric.column)
        return None if span is None else (*span, span[1] - span[0])[place]

    return [
        number_column(
            f"{metric.short} range", lambda one: end(one, 2), metric.digits, "num strong"
        ),
        number_column("from", lambda one: end(one, 0), metric.digits),
        number_column("to", lambda one: end(one, 1), metric.digits),
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
    values = [by.value(one) for line in by.lines for one in line]
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

    def at(one: Setting) -> Any:
        return by.value(one) if numeric else text(by.value(one))

    traces: list[Figure] = []
    for number, line in enumerate(by.lines):
        traces += _traces(method, by, line, [at(one) for one in line], of, style, number)
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
        [one.metrics[of.column] for one in line],
        name,
        f"%{{fullData.name}}<br>{at}, mean of {max(len(one.rows) for one in line)}",
        mode="lines+markers",
        line={"color": colour, "width": 1.6, "dash": DASHES[number % len(DASHES)]},
        marker={"color": colour, "size": 6},
        meta=tags,
    )
    seeds = [
        (place, row)
        for place, one in zip(x, line, strict=True)
        for row in one.rows
        if len(one.rows) > 1
    ]
    points = trace(
        [place for place, _ in seeds],
        [row.metrics[of.column] for _, row in seeds],
        name,
        f"%{{text}}, {at}",
        mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.4},
        text=[f"seed {row.seed}" for _, row in seeds],
        meta=tags,
    )
    return [means, points] if seeds else [means]
