"""Sensitivity: what each method keeps and forgets by its learning rate and hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unlearnbench.analysis.best_settings import panel_label
from unlearnbench.analysis.sensitivity import MethodSensitivity, sensitivities
from unlearnbench.api.benchmark import HeadlineMetric

from ...figures.sensitivity_plot import sensitivity
from ...formatting import signed
from ...html_table import Column, HtmlTable
from ...report_section import PageContext, ReportSection

Line = MethodSensitivity


def _methods(context: PageContext) -> tuple[MethodSensitivity, ...]:
    return sensitivities(context.report.rows)


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
        columns += [
            Column(f"{metric.short} range", _text(metric), _range(metric), "num strong"),
            Column("from", _end(metric, 0), _number(metric, 0)),
            Column("to", _end(metric, 1), _number(metric, 1)),
        ]
    return HtmlTable(
        id="sensitivity",
        label="Ranges over settings",
        columns=tuple(columns),
        lines=methods,
        family=lambda one: one.family,
        panel=lambda one: context.panel_number(one.model, one.forget_fraction),
    )


def _range(metric: HeadlineMetric) -> Callable[[Line], float | None]:
    def value(one: Line) -> float | None:
        span = one.span(metric.column)
        return None if span is None else span[1] - span[0]

    return value


def _text(metric: HeadlineMetric) -> Callable[[Line], str]:
    of = _range(metric)
    return lambda one: signed(of(one), metric.digits)


def _number(metric: HeadlineMetric, end: int) -> Callable[[Line], float | None]:
    def value(one: Line) -> float | None:
        span = one.span(metric.column)
        return None if span is None else span[end]

    return value


def _end(metric: HeadlineMetric, end: int) -> Callable[[Line], str]:
    of = _number(metric, end)
    return lambda one: signed(of(one), metric.digits)


def _figures(context: PageContext) -> list[list[dict[str, Any]]]:
    """Draw the figures of each panel: of a method by each of its hyper-parameters."""
    headline, found = context.report.headline, list[list[dict[str, Any]]]()
    for panel in context.panels:
        place = (panel.model, panel.forget_fraction)
        start = {headline.forgotten: panel.begins.quality, headline.kept: panel.begins.utility}
        found.append(
            [
                {"family": one.family, **sensitivity(one, by, of, start[of], context.style)}
                for one in context.once(_methods)
                if (one.model, one.forget_fraction) == place
                for by in one.dependences
                for of in (headline.forgotten, headline.kept)
            ]
        )
    return found


SECTION = ReportSection(
    folder="sensitivity",
    id="sensitivity",
    title="Sensitivity",
    values=_values,
    lazy_data=_figures,
)
