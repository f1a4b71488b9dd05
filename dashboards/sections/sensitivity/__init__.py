"""What every setting of a method keeps and forgets, and by which hyperparameter that changes.

Strips have a mark for each setting. Curves join the settings that differ in one hyperparameter.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
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
from ...figures.tradeoff_data import TradeOffPanel
from ...formatting import rate_text, value_text, value_texts
from ...html_table import HtmlTable, number_column
from ...report_section import PageContext, Section, of_place


class SensitivitySection(Section):
    """Strips of all settings, and ranges over those that did not collapse.

    Absent if every method has only one setting.
    """

    name, title, order, folder = "sensitivity", "Sensitivity", 70, "sensitivity"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Make the table of ranges."""
        shown = _strips(context)
        if not any(len(strip.marks) > 1 for strip in shown):
            return None
        report = context.report
        methods = _methods(context)
        trained_methods = {row.family for row in report.rows if row.kind == "run"}
        methods_with_range = {method.family for method in methods}
        return {
            "table": _range_table(methods, context) if methods else None,
            "headline": report.headline,
            "alone": sorted(trained_methods - methods_with_range),
            "has_collapsed": any(mark.has_collapsed for strip in shown for mark in strip.marks),
            "without_number": sum(strip.without_number for strip in shown),
            "retain": any(panel.retain for panel in context.panels),
            "share": f"{100 * UTILITY_SHARE:g}",
        }

    def data(self, context: PageContext) -> Any:
        """Draw the figures of each panel: strips, and each method by each hyperparameter."""
        return {
            "strips": [_strip_figures(panel, context) for panel in context.panels],
            "lines": [_curve_figures(panel, context) for panel in context.panels],
        }


@lru_cache(maxsize=1)
def _strips(context: PageContext) -> tuple[Strip, ...]:
    return strips(context.report.panels)


@lru_cache(maxsize=1)
def _methods(context: PageContext) -> tuple[MethodSensitivity, ...]:
    return sensitivities(context.report.panels)


# ---- The table of ranges ----


def _range_table(methods: Sequence[MethodSensitivity], context: PageContext) -> HtmlTable:
    headline = context.report.headline
    columns = [Column("Method", lambda method: method.family, align="")]
    if len(context.panels) > 1:
        columns.append(Column("Panel", lambda method: method.place, align=""))
    columns.append(Column("Settings", lambda method: str(len(method.settings))))
    columns += _range_columns(headline.forgotten)
    columns += _range_columns(headline.kept)
    return HtmlTable(
        id="sensitivity",
        label="Ranges over settings",
        columns=columns,
        lines=methods,
        family=lambda method: method.family,
        panel=lambda method: context.panel_number(*method.panel),
    )


def _range_columns(metric: HeadlineMetric) -> list[Column]:
    """Make the columns with the width and both ends of a headline metric's range."""

    def width(method: MethodSensitivity) -> float | None:
        span = method.span(metric.column)
        return None if span is None else span.width

    def low(method: MethodSensitivity) -> float | None:
        span = method.span(metric.column)
        return None if span is None else span.low

    def high(method: MethodSensitivity) -> float | None:
        span = method.span(metric.column)
        return None if span is None else span.high

    return [
        number_column(f"{metric.short} range", width, metric.digits, "num strong"),
        number_column("from", low, metric.digits, "num"),
        number_column("to", high, metric.digits, "num"),
    ]


# ---- Figures ----


def _strip_figures(panel: TradeOffPanel, context: PageContext) -> list[Figure]:
    """Draw the strips of a panel, by what is kept and by what is forgotten."""
    headline = context.report.headline
    shown = of_place(_strips(context), panel)
    return [
        draw_strips(panel, shown, metric, context.style)
        for metric in (headline.kept, headline.forgotten)
    ]


def _curve_figures(panel: TradeOffPanel, context: PageContext) -> list[Figure]:
    """Draw each method of a panel by each hyperparameter that changes, and by both metrics."""
    headline = context.report.headline
    figures: list[Figure] = []
    for method in of_place(_methods(context), panel):
        for dependence in method.dependences:
            for metric, start in (
                (headline.forgotten, panel.start.quality),
                (headline.kept, panel.start.utility),
            ):
                figure = draw(method, dependence, metric, start, context.style)
                figures.append({"family": method.family, **figure})
    return figures


def draw(
    method: MethodSensitivity,
    dependence: Dependence,
    metric: HeadlineMetric,
    start: float | None,
    style: Style,
) -> Figure:
    """Draw a headline metric by one hyperparameter: means over seeds, with intervals.

    Args:
        method: The method.
        dependence: The hyperparameter, and the lines of settings that differ only in it.
        metric: The headline metric.
        start: The start model's number, drawn as a dotted level. None draws none.
        style: Colours of methods.
    """
    values = [dependence.value(setting) for line in dependence.lines for setting in line]
    axis = _axis_of_values(dependence, values)
    layout = small_layout(f"{method.family}: {metric.short}", dependence.name, **axis)
    if start is not None:
        layout["shapes"] = [level("start", start, "dot")]
    texts = value_texts(values)
    curves = [
        _curve(method, dependence, number, metric, style, texts)
        for number in range(len(dependence.lines))
    ]
    return {"data": curves, "layout": layout}


def _axis_of_values(dependence: Dependence, values: Sequence[Any]) -> dict[str, Any]:
    """Choose the axis of a hyperparameter: by category, linear or logarithmic."""
    if not all(_is_number(value) for value in values):
        return {"type": "category"}
    is_rate = dependence.name == RATE
    is_log = min(values) > 0 and (is_rate or max(values) >= 10 * min(values))
    text = rate_text if is_rate else value_text
    tried = sorted({*values})
    return {
        "type": "log" if is_log else "linear",
        "tickvals": tried,
        "ticktext": [text(value) for value in tried],
    }


def _is_number(value: Any) -> bool:
    """Whether a value has a place on an axis of numbers. A boolean, although an int, has none."""
    return type(value) in (int, float)


def _curve(
    method: MethodSensitivity,
    dependence: Dependence,
    number: int,
    metric: HeadlineMetric,
    style: Style,
    texts: Mapping[str, str],
) -> Figure:
    """Draw a line of settings, in the order of the hyperparameter.

    Args:
        method: The method.
        dependence: The hyperparameter and its lines.
        number: Index of the line, by which its dash is chosen.
        metric: The headline metric.
        style: Colours of methods.
        texts: Texts of values that are not numbers, see `value_texts`.
    """
    settings = dependence.lines[number]
    colour = style.colour(method.family)
    positions: list[Any] = []
    for setting in settings:
        value = dependence.value(setting)
        positions.append(value if _is_number(value) else texts[exact_text(value)])
    return trace(
        positions,
        [setting.metrics[metric.column] for setting in settings],
        _curve_name(method, dependence, settings[0]),
        f"%{{fullData.name}}<br>{escape(dependence.name)} %{{x}}: %{{y:.4g}}%{{customdata}}",
        customdata=[seeds_of(setting) for setting in settings],
        mode="lines+markers",
        line={"color": colour, "width": 1.6, "dash": DASHES[number % len(DASHES)]},
        marker={"color": colour, "size": 6},
        error_y=error_bars([setting.interval(metric.column) for setting in settings], thickness=1),
        meta=meta("own", method.family, slot=style.slots[method.family], alpha=0.9),
    )


def _curve_name(method: MethodSensitivity, dependence: Dependence, first: Setting) -> str:
    """Name a curve by what its settings have in common.

    Args:
        method: The method.
        dependence: The hyperparameter in which the settings differ.
        first: The first setting of the curve.
    """
    if dependence.name != RATE:
        return f"{first.method}, rate {rate_text(first.learning_rate)}"
    # A method with a single curve needs no hyperparameters in the name.
    return method.family if len(dependence.lines) == 1 else first.method
