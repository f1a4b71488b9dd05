"""Sensitivity: what each method keeps and forgets by its learning rate and hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.analysis.sensitivity import MethodSensitivity, sensitivities
from unlearnbench.api.benchmark import HeadlineMetric

from ...figures.sensitivity_plot import sensitivity
from ...html_table import Column, HtmlTable, number_column
from ...report_section import PageContext, ReportSection, of_place

Line = MethodSensitivity


def _methods(context: PageContext) -> tuple[MethodSensitivity, ...]:
    return sensitivities(context.report.panels)


def _values(context: PageContext) -> Mapping[str, Any] | None:
    """Leave the section out where every method has one setting."""
    methods = context.once(_methods)
    if not methods:
        return None
    headline = context.report.headline
    alone = {r.family for r in context.report.rows if r.kind == "run"} - {m.family for m in methods}
    return {"table": _table(context, methods), "headline": headline, "alone": sorted(alone)}


def _table(context: PageContext, methods: tuple[MethodSensitivity, ...]) -> HtmlTable[Line]:
    headline = context.report.headline
    columns: list[Column[Line]] = [Column("Method", lambda one: one.family, align="")]
    if len(context.panels) > 1:
        columns.append(
            Column("Panel", lambda one: panel_label(one.model, one.forget_fraction), align="")
        )
    columns.append(Column("Settings", lambda one: str(len(one.settings))))
    for metric in (headline.forgotten, headline.kept):
        columns += _columns(metric)
    return HtmlTable(
        id="sensitivity",
        label="Ranges over settings",
        columns=tuple(columns),
        lines=methods,
        family=lambda one: one.family,
        panel=lambda one: context.panel_number(one.model, one.forget_fraction),
    )


def _columns(metric: HeadlineMetric) -> list[Column[Line]]:
    """Make the columns of a number of the headline: its range, and the ends of it."""

    def number(title: str, of: Callable[[float, float], float], align: str = "num") -> Column[Line]:
        def value(one: Line) -> float | None:
            span = one.span(metric.column)
            return None if span is None else of(*span)

        return number_column(title, value, metric.digits, align)

    return [
        number(f"{metric.short} range", lambda low, high: high - low, "num strong"),
        number("from", lambda low, _: low),
        number("to", lambda _, high: high),
    ]


def _figures(context: PageContext) -> list[list[dict[str, Any]]]:
    """Draw the figures of each panel: of a method by each of its hyper-parameters."""
    headline, found = context.report.headline, list[list[dict[str, Any]]]()
    for panel in context.panels:
        start = {headline.forgotten: panel.begins.quality, headline.kept: panel.begins.utility}
        found.append(
            [
                {"family": one.family, **sensitivity(one, by, of, start[of], context.style)}
                for one in of_place(context.once(_methods), panel)
                for by in one.dependences
                for of in (headline.forgotten, headline.kept)
            ]
        )
    return found


SECTION = ReportSection("sensitivity", "sensitivity", "Sensitivity", _values, lazy_data=_figures)
