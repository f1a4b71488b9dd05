"""Best settings, by the sweep's own rule if it has one, or by the page's rule."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import Best
from unlearnbench.analysis.setting_order import best_first
from unlearnbench.analysis.settings import Setting, panel_order
from unlearnbench.analysis.wording import best_rule
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.report.best_table import (
    Column,
    TableFormat,
    choice_rule,
    columns,
    reference_lines,
    write_table,
)
from unlearnbench.results.outcomes import outcome
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

from ...figures.tradeoff_data import TradeOffPanel
from ...formatting import interval_names
from ...html_table import Bar, Ends, HtmlTable
from ...report_section import PageContext, Section, of_place

FORMATS: Mapping[str, TableFormat] = {"CSV": "csv", "Markdown": "markdown", "LaTeX": "latex"}
NAME = "best"
"""Name of the table on the page."""


@dataclass(frozen=True)
class SettingsLine(Best):
    """A method, or one of its entries, on one model and split."""

    tried: int = 1
    """Number of candidates; by the page's rule, every epoch of a setting is one."""
    rank: int | None = None
    """Place among the methods, see `Panel.places`."""

    @classmethod
    def of(cls, best: Best, tried: int, rank: int | None) -> "SettingsLine":
        """Make the line of a best setting."""
        fields_of_best = {item.name: getattr(best, item.name) for item in fields(Best)}
        return cls(**fields_of_best, tried=tried, rank=rank)


@dataclass(frozen=True)
class SettingsTable:
    """The best settings of all panels."""

    rule: str
    seeds: tuple[int, ...]
    """Seeds that the numbers are means over."""
    lines: tuple[SettingsLine, ...]
    chosen_apart: bool = False
    """True if the choice was made on other seeds than those reported."""


@lru_cache(maxsize=1)
def settings_table(context: PageContext) -> SettingsTable:
    """Find the best setting of each method, by the sweep's rule if it has one, or by the page's."""
    report = context.report
    lines = _ordered([*_best_lines(context), *_unevaluated(context)])
    if not any(panel.choices for panel in context.panels):
        rule = best_rule(report.headline)
        return SettingsTable(
            rule=f"among all learning rates, hyperparameters and {report.unit.plural}, {rule}",
            seeds=tuple(sorted({row.seed for row in report.rows if row.kind == "run"})),
            lines=lines,
        )
    settings = [line.setting for line in lines if line.setting is not None]
    return SettingsTable(
        rule=choice_rule(report),
        seeds=tuple(sorted({row.seed for setting in settings for row in setting.rows})),
        lines=lines,
        chosen_apart=True,
    )


def _best_lines(context: PageContext) -> list[SettingsLine]:
    lines: list[SettingsLine] = []
    for panel in context.panels:
        for best, rank in zip(panel.best, panel.places, strict=True):
            tried = len([s for s in panel.judged if s.family == best.family and s.epoch > 0])
            if best.choice is not None:
                tried = best.choice.candidates
            lines.append(SettingsLine.of(best, tried, rank))
    return lines


def _unevaluated(context: PageContext) -> list[SettingsLine]:
    """List the methods without a number that counts, for example because the loss was NaN."""
    evaluated = {(*panel.panel, best.family) for panel in context.panels for best in panel.best}
    # Several records of a method have one line, which gives the reason of the last record.
    lines: dict[Any, SettingsLine] = {}
    for record in context.report.without_result:
        place_and_method = (*record.panel, record.method)
        if place_and_method not in evaluated:
            lines[place_and_method] = SettingsLine(
                *record.panel,
                record.method,
                record.method,
                None,
                why_not=outcome(record).why_no_number,
            )
    return list(lines.values())


def _ordered(lines: list[SettingsLine]) -> tuple[SettingsLine, ...]:
    """Sort by model and split, then the best first."""

    def key(line: SettingsLine) -> Any:
        return panel_order(line.panel), not line.keeps, best_first(line.setting, line.name)

    return tuple(sorted(lines, key=key))


def texts(table: SettingsTable, context: PageContext) -> dict[str, str]:
    """Write the table as the page copies it, by format; empty without a line."""
    if not table.lines:
        return {}
    chosen = table.lines, context.report.headline, table.rule
    references = reference_lines(context.panels, table.lines)
    unit = context.report.unit
    return {name: write_table(*chosen, kind, references, unit) for name, kind in FORMATS.items()}


class BestSettings(Section):
    """The table of best settings, which can be copied."""

    name, title, order, folder = "best", "Best settings", 40, "best_settings"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Make the table."""
        table = settings_table(context)
        settings = [line.setting for line in table.lines if line.setting]
        column = context.report.headline.forgotten.column
        return {
            "table": table,
            "html": _html_table(table, context),
            "brackets": interval_names(setting.interval(column) for setting in settings),
            "retain": any(panel.retain for panel in context.panels),
            "warned": any(warnings_of(context, setting) for setting in settings),
            "about_places": _about_places(table, context),
            "few": any(len(setting.rows) < ENOUGH_SEEDS for setting in settings),
        }

    def data(self, context: PageContext) -> Any:
        """Write the table as it is copied, by format."""
        table = settings_table(context)
        return {NAME: texts(table, context)}


def _about_places(table: SettingsTable, context: PageContext) -> str:
    """Say what places are by, and which methods share one; empty if no method has a place."""
    if all(line.rank is None for line in table.lines):
        return ""
    text = f"Places are by {context.report.headline.forgotten.name}."
    if len(context.panels) > 1:
        return f"{text} Between methods that share a place, the difference may be chance."
    names_of_place: dict[int, list[str]] = {}
    for line in table.lines:
        if line.rank is not None:
            names_of_place.setdefault(line.rank, []).append(line.name)
    ties = [
        f"{', '.join(names[:-1])} and {names[-1]} share place {place}"
        for place, names in names_of_place.items()
        if len(names) > 1
    ]
    if not ties:
        return f"{text} No two methods share a place."
    return f"{text} {'; '.join(ties)}: the difference between them may be chance."


def _html_table(table: SettingsTable, context: PageContext) -> HtmlTable:
    _, *others = columns(table.lines, context.report.headline, context.report.unit)
    starts = {panel.panel: panel.start for panel in context.panels}

    def method(line: SettingsLine) -> Markup:
        if line.setting is None:
            return Markup('{} <small class="why">{}</small>').format(line.method, line.why_not)
        unmoved = starts[line.panel].unmoved(line.setting.forgotten)
        note = warning_mark(context, line.setting)
        if line.why_not:
            note += Markup(' <small class="why">{}</small>').format(line.why_not)
        return button(line.setting, unmoved=unmoved) + note

    def number_tried(line: Best) -> str:
        return str(line.tried) if isinstance(line, SettingsLine) else ""

    def place_of(line: Best) -> int | None:
        return line.rank if isinstance(line, SettingsLine) else None

    def place_text(line: Best) -> str:
        place = place_of(line)
        return "" if place is None else str(place)

    place = Column("Place", place_text, place_of)
    tried = Column("Tried", number_tried)
    return HtmlTable(
        id=NAME,
        label="Best setting of each method",
        columns=[Column("Method", method, align=""), place, *others, tried],
        lines=table.lines,
        family=lambda line: line.family,
        panel=lambda line: context.panel_number(*line.panel),
        references=reference_lines(context.panels, table.lines),
        bars={
            metric.plain_label: _bar(context, table, metric)
            for metric in (context.report.headline.forgotten, context.report.headline.kept)
        },
    )


def _bar(
    context: PageContext, table: SettingsTable, metric: HeadlineMetric
) -> Callable[[SettingsLine], Bar | None]:
    """Return what draws a number of a line as a bar, on one scale for each panel."""
    panels = {panel.panel: panel for panel in context.panels}
    scales: dict[tuple[str, Any], tuple[float, float]] = {}
    for panel in context.panels:
        settings = [line.setting for line in of_place(table.lines, panel) if line.setting]
        scales[panel.panel] = _scale(panel, settings, metric)

    def bar(line: SettingsLine) -> Bar | None:
        value = None if line.setting is None else line.setting.metrics.get(metric.column)
        if line.setting is None or value is None:
            return None
        panel = panels[line.panel]
        low, high = scales[line.panel]

        def share(number: float | None) -> float | None:
            return None if number is None else (number - low) / (high - low)

        interval = line.setting.interval(metric.column)
        ends = None
        if interval is not None:
            ends = Ends((interval.low - low) / (high - low), (interval.high - low) / (high - low))
        retain = None if panel.retain is None else panel.retain.metrics.get(metric.column)
        start = panel.at_start(metric.column)
        return Bar((value - low) / (high - low), ends, share(start), share(retain))

    return bar


def _scale(
    panel: TradeOffPanel, settings: list[Setting], metric: HeadlineMetric
) -> tuple[float, float]:
    """Return the numbers at both ends of a bar.

    They are the bounds of the number. Where it has none, as a logarithm has not, they are the ends
    of what the panel's best settings and both other models have.
    """
    low, high = panel.rows[0].schema.column(metric.column).bounds
    shown = [setting.metrics.get(metric.column) for setting in settings]
    shown.append(panel.at_start(metric.column))
    shown.append(None if panel.retain is None else panel.retain.metrics.get(metric.column))
    for setting in settings:
        interval = setting.interval(metric.column)
        shown += () if interval is None else (interval.low, interval.high)
    numbers = [number for number in shown if number is not None and math.isfinite(number)]
    if math.isinf(low):
        low = min(numbers, default=0.0)
    if math.isinf(high):
        high = max(numbers, default=1.0)
    return (low, high) if high > low else (low - 1.0, low)


def warnings_of(context: PageContext, setting: Setting) -> dict[str, str]:
    """Collect why the scores of a setting are no success, by kind; empty if they are one."""
    if setting.why_not:
        return {}
    scores = context.report.scorers[setting.panel].scores(setting.rows)
    return {kind: text for score in scores for kind, text in score.warnings.items()}


def warning_mark(context: PageContext, setting: Setting) -> Markup:
    """Name the warnings of a setting, with a link to the scorecard, which explains them."""
    warnings = warnings_of(context, setting)
    if not warnings:
        return Markup("")
    return Markup(' <a class="warned" href="#scorecard" title="{}">⚠ {}</a>').format(
        "; ".join(warnings.values()), ", ".join(warnings)
    )


def button(setting: Setting, *, unmoved: bool = False) -> Markup:
    """Make the name of a setting's method, which opens the card of its point."""
    note = Markup(" <small>no better than the start</small>") if unmoved else ""
    return Markup(
        '<button type="button" class="link" data-run="{}" data-epoch="{}">{}</button>{}'
    ).format(setting.rows[0].run_id, setting.epoch, setting.method, note)
