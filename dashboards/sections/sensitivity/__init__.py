"""What every setting of a method keeps and forgets, and by which hyperparameter that changes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from html import escape
from typing import Any

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.analysis.sensitivity import (
    RATE,
    Dependence,
    MethodSensitivity,
    Strip,
    sensitivities,
    strips,
)
from unlearnbench.analysis.settings import Setting
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.report.best_table import Column
from unlearnbench.results.setting_value import value_text as exact_text

from ...figures.marks import (
    Figure,
    error_bars,
    level,
    seeds_of,
    small_layout,
    trace,
)
from ...figures.palette import DASHES, Style, meta
from ...figures.strip_plot import draw_strips
from ...formatting import rate_text, value_text, value_texts
from ...html_table import HtmlTable, number_column
from ...report_section import PageContext, Section, of_place


class SensitivitySection(Section):
    """Strips of all settings, and ranges over those that did not collapse.

    Absent where every method has one setting.
    """

    name, title, order, folder = "sensitivity", "Sensitivity", 70, "sensitivity"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Make the table of ranges."""
        shown = _strips(context)
        if not any(len(strip.marks) > 1 for strip in shown):
            return None
        methods = _methods(context)
        headline, rows = context.report.headline, context.report.rows
        columns = [Column("Method", lambda item: item.family, align="")]
        if len(context.panels) > 1:
            columns.append(Column("Panel", lambda item: item.place, align=""))
        columns.append(Column("Settings", lambda item: str(len(item.settings))))
        for metric in (headline.forgotten, headline.kept):
            columns += _columns(metric)
        table = HtmlTable(
            id="sensitivity",
            label="Ranges over settings",
            columns=columns,
            lines=methods,
            family=lambda item: item.family,
            panel=lambda item: context.panel_number(*item.panel),
        )
        alone = {r.family for r in rows if r.kind == "run"} - {m.family for m in methods}
        return {
            "table": table if methods else None,
            "headline": headline,
            "alone": sorted(alone),
            "has_collapsed": any(mark.has_collapsed for strip in shown for mark in strip.marks),
            "without_number": sum(strip.without_number for strip in shown),
            "retain": any(panel.retain for panel in context.panels),
            "share": f"{100 * UTILITY_SHARE:g}",
        }

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel: strips, and each method by each hyperparameter."""
        headline = context.report.headline
        strips_of_panel: list[list[Figure]] = []
        lines_of_panel: list[list[Figure]] = []
        for panel in context.panels:
            here = of_place(_strips(context), panel)
            both = (headline.kept, headline.forgotten)
            strips_of_panel.append([draw_strips(panel, here, of, context.style) for of in both])
            start = {headline.forgotten: panel.start.quality, headline.kept: panel.start.utility}
            lines_of_panel.append(
                [
                    {"family": item.family, **draw(item, by, of, start[of], context.style)}
                    for item in of_place(_methods(context), panel)
                    for by in item.dependences
                    for of in (headline.forgotten, headline.kept)
                ]
            )
        return {"strips": strips_of_panel, "lines": lines_of_panel}


@lru_cache(maxsize=1)
def _strips(context: PageContext) -> tuple[Strip, ...]:
    return strips(context.report.panels)


@lru_cache(maxsize=1)
def _methods(context: PageContext) -> tuple[MethodSensitivity, ...]:
    return sensitivities(context.report.panels)


def _columns(metric: HeadlineMetric) -> list[Column]:
    """Make the columns of a number of the headline: its range, and the ends of it."""

    def part(name: str, line: MethodSensitivity) -> float | None:
        span = line.span(metric.column)
        value: float | None = None if span is None else getattr(span, name)
        return value

    return [
        number_column(title, partial(part, name), metric.digits, align)
        for title, name, align in (
            (f"{metric.short} range", "width", "num strong"),
            ("from", "low", "num"),
            ("to", "high", "num"),
        )
    ]


def draw(
    method: MethodSensitivity, by: Dependence, of: HeadlineMetric, start: float | None, style: Style
) -> Figure:
    """Draw a number of the headline by one hyper-parameter: means over seeds, with intervals.

    start  the start model's number, the dotted level
    """
    text = rate_text if by.name == RATE else value_text
    values = [by.value(item) for line in by.lines for item in line]
    axis: dict[str, Any] = {"type": "category"}
    if all(type(value) in (int, float) for value in values):
        is_log = min(values) > 0 and (by.name == RATE or max(values) >= 10 * min(values))
        axis = {"type": "log" if is_log else "linear", "tickvals": sorted({*values})}
        axis["ticktext"] = [text(value) for value in axis["tickvals"]]
    layout = small_layout(f"{method.family}: {of.short}", by.name, **axis)
    if start is not None:
        layout["shapes"] = [level("start", start, "dot")]
    shown = value_texts(values)
    lines = [
        _line(method, by, line, of, style, number, shown) for number, line in enumerate(by.lines)
    ]
    return {"data": lines, "layout": layout}


def _line(
    method: MethodSensitivity,
    by: Dependence,
    line: Sequence[Setting],
    of: HeadlineMetric,
    style: Style,
    number: int,
    shown: Mapping[str, str],
) -> Figure:
    """Draw the settings of one line, in order of the hyperparameter.

    shown  texts of values that are no numbers, see `value_texts`
    """
    first, colour = line[0], style.colour(method.family)
    across: list[Any] = []
    for item in line:
        value = by.value(item)
        is_number = type(value) in (int, float)  # a boolean is no number on an axis
        across.append(value if is_number else shown[exact_text(value)])
    if by.name != RATE:
        name = f"{first.method}, rate {rate_text(first.learning_rate)}"
    else:
        # The only line needs no hyperparameters in its name.
        name = method.family if len(by.lines) == 1 else first.method
    return trace(
        across,
        [item.metrics[of.column] for item in line],
        name,
        f"%{{fullData.name}}<br>{escape(by.name)} %{{x}}: %{{y:.4g}}%{{customdata}}",
        customdata=[seeds_of(item) for item in line],
        mode="lines+markers",
        line={"color": colour, "width": 1.6, "dash": DASHES[number % len(DASHES)]},
        marker={"color": colour, "size": 6},
        error_y=error_bars([item.interval(of.column) for item in line], thickness=1),
        meta=meta("own", method.family, slot=style.slots[method.family], alpha=0.9),
    )
