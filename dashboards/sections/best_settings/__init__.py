"""The best setting of each method: by the sweep's own rule if it has one, or by the page's rule.

Other sections use the table of these settings too, and the warnings of a setting.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import Best
from unlearnbench.analysis.setting_order import best_first
from unlearnbench.analysis.settings import PanelKey, Setting, panel_order
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
    """The line of a method, or of one of its entries, on one model and split."""

    tried: int = 1
    """Number of candidates that it was chosen from. By the page's rule, every epoch of a setting is
    a candidate."""
    rank: int | None = None
    """Place among the methods, see `Panel.places`. None if it has no place."""

    @classmethod
    def of(cls, best: Best, tried: int, rank: int | None) -> "SettingsLine":
        """Make the line of a best setting."""
        fields_of_best = {item.name: getattr(best, item.name) for item in fields(Best)}
        return cls(**fields_of_best, tried=tried, rank=rank)


@dataclass(frozen=True)
class SettingsTable:
    """The best settings of all panels."""

    rule: str
    """How the settings were chosen, as the rest of a sentence."""
    seeds: tuple[int, ...]
    """Seeds that the numbers are means over."""
    lines: tuple[SettingsLine, ...]
    chosen_apart: bool = False
    """Whether the settings were chosen on other seeds than the reported ones."""


@lru_cache(maxsize=1)
def settings_table(context: PageContext) -> SettingsTable:
    """Find the best setting of each method, by the sweep's rule if it has one, or by the page's."""
    report = context.report
    lines = _ordered([*_best_lines(context), *_unevaluated(context)])
    sweep_has_chosen = any(panel.choices for panel in context.panels)
    if sweep_has_chosen:
        settings = [line.setting for line in lines if line.setting is not None]
        seeds = {row.seed for setting in settings for row in setting.rows}
        return SettingsTable(
            rule=choice_rule(report), seeds=tuple(sorted(seeds)), lines=lines, chosen_apart=True
        )
    rule = best_rule(report.headline)
    seeds = {row.seed for row in report.rows if row.kind == "run"}
    return SettingsTable(
        rule=f"among all learning rates, hyperparameters and {report.unit.plural}, {rule}",
        seeds=tuple(sorted(seeds)),
        lines=lines,
    )


def _best_lines(context: PageContext) -> list[SettingsLine]:
    """Make the lines of all methods that have numbers."""
    lines: list[SettingsLine] = []
    for panel in context.panels:
        for best, rank in zip(panel.best, panel.places, strict=True):
            tried = _number_tried(panel, best)
            lines.append(SettingsLine.of(best, tried, rank))
    return lines


def _number_tried(panel: TradeOffPanel, best: Best) -> int:
    """Count the candidates that a best setting was chosen from."""
    if best.choice is not None:
        return best.choice.candidates
    # At epoch 0 every setting is the start model.
    return sum(setting.family == best.family and setting.epoch > 0 for setting in panel.judged)


def _unevaluated(context: PageContext) -> list[SettingsLine]:
    """Make the lines of methods that have no best setting, because none of their runs has numbers.

    That is so if all runs failed or ended in a NaN loss. Without a line, they would look untried.
    """
    # A family is a method with its retain term, as `record.method` names it: `npo+kl`.
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
    """Sort by model and split. On each panel, the best setting comes first.

    Settings that keep too little come behind those that keep enough.
    """

    def sort_key(line: SettingsLine) -> Any:
        return panel_order(line.panel), not line.keeps, best_first(line.setting, line.name)

    return tuple(sorted(lines, key=sort_key))


def texts(table: SettingsTable, context: PageContext) -> dict[str, str]:
    """Write the table as the page copies it, by format. Empty without a line."""
    if not table.lines:
        return {}
    headline = context.report.headline
    unit = context.report.unit
    references = reference_lines(context.panels, table.lines)
    text_by_format: dict[str, str] = {}
    for name, table_format in FORMATS.items():
        text_by_format[name] = write_table(
            table.lines, headline, table.rule, table_format, references, unit
        )
    return text_by_format


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
    """Say what places are by, and which methods share one. Empty if no method has a place."""
    if all(line.rank is None for line in table.lines):
        return ""
    text = f"Places are by {context.report.headline.forgotten.name}."
    if len(context.panels) > 1:
        return f"{text} Between methods that share a place, the difference may be chance."
    names_of_place: dict[int, list[str]] = {}
    for line in table.lines:
        if line.rank is not None:
            names_of_place.setdefault(line.rank, []).append(line.name)
    ties: list[str] = []
    for place, names in names_of_place.items():
        if len(names) > 1:
            *others, last = names
            ties.append(f"{', '.join(others)} and {last} share place {place}")
    if not ties:
        return f"{text} No two methods share a place."
    return f"{text} {'; '.join(ties)}: the difference between them may be chance."


def _html_table(table: SettingsTable, context: PageContext) -> HtmlTable:
    """Make the table as the page shows it, with bars in two columns."""
    headline = context.report.headline
    # The first column of a written table is the method's name. Here it is a button.
    _, *number_columns = columns(table.lines, headline, context.report.unit)
    method_column = Column("Method", lambda line: _method_cell(line, context), align="")
    place_column = Column("Place", _place_text, _place_of)
    tried_column = Column("Tried", _tried_text)
    return HtmlTable(
        id=NAME,
        label="Best setting of each method",
        columns=[method_column, place_column, *number_columns, tried_column],
        lines=table.lines,
        family=lambda line: line.family,
        panel=lambda line: context.panel_number(*line.panel),
        references=reference_lines(context.panels, table.lines),
        bars={
            metric.plain_label: _bar(context, table, metric)
            for metric in (headline.forgotten, headline.kept)
        },
    )


def _method_cell(line: SettingsLine, context: PageContext) -> Markup:
    """Make the first cell of a line: the method, its warnings, and why it has no setting."""
    if line.setting is None:
        return Markup('{} <small class="why">{}</small>').format(line.method, line.why_not)
    panel = next(panel for panel in context.panels if panel.panel == line.panel)
    is_unmoved = panel.start.unmoved(line.setting.forgotten)
    cell = button(line.setting, unmoved=is_unmoved) + warning_mark(context, line.setting)
    if line.why_not:
        cell += Markup(' <small class="why">{}</small>').format(line.why_not)
    return cell


# The columns of a table are also computed for the lines of both other models, which are no
# `SettingsLine` and have neither a place nor candidates.


def _place_of(line: Best) -> int | None:
    return line.rank if isinstance(line, SettingsLine) else None


def _place_text(line: Best) -> str:
    place = _place_of(line)
    return "" if place is None else str(place)


def _tried_text(line: Best) -> str:
    return str(line.tried) if isinstance(line, SettingsLine) else ""


@dataclass(frozen=True)
class _BarScale:
    """The scale of a panel's bars for one metric."""

    low: float
    """The number at the beginning of a bar."""
    high: float
    """The number at the end of a bar."""

    def share(self, number: float) -> float:
        """Return the place of a number as a fraction of the bar's length."""
        return (number - self.low) / (self.high - self.low)

    def optional_share(self, number: float | None) -> float | None:
        """Return the place of a number that may be missing."""
        return None if number is None else self.share(number)


def _bar(
    context: PageContext, table: SettingsTable, metric: HeadlineMetric
) -> Callable[[SettingsLine], Bar | None]:
    """Return a function that makes the bar of a line. All bars of a panel have the same scale."""
    panels = {panel.panel: panel for panel in context.panels}
    scales: dict[PanelKey, _BarScale] = {}
    for panel in context.panels:
        settings = [line.setting for line in of_place(table.lines, panel) if line.setting]
        scales[panel.panel] = _scale(panel, settings, metric)

    def bar(line: SettingsLine) -> Bar | None:
        value = None if line.setting is None else line.setting.metrics.get(metric.column)
        if line.setting is None or value is None:
            return None
        panel = panels[line.panel]
        scale = scales[line.panel]
        interval = line.setting.interval(metric.column)
        ends = None
        if interval is not None:
            ends = Ends(scale.share(interval.low), scale.share(interval.high))
        return Bar(
            value=scale.share(value),
            interval=ends,
            start=scale.optional_share(panel.at_start(metric.column)),
            retain=scale.optional_share(_of_retain_model(panel, metric)),
        )

    return bar


def _of_retain_model(panel: TradeOffPanel, metric: HeadlineMetric) -> float | None:
    return None if panel.retain is None else panel.retain.metrics.get(metric.column)


def _scale(panel: TradeOffPanel, settings: Sequence[Setting], metric: HeadlineMetric) -> _BarScale:
    """Choose the scale of a panel's bars.

    The ends of a bar are the bounds of the number. A number without a bound, such as a logarithm,
    takes the lowest or highest value of the best settings and of both other models instead.
    """
    low, high = panel.rows[0].schema.column(metric.column).bounds
    shown = [setting.metrics.get(metric.column) for setting in settings]
    shown.append(panel.at_start(metric.column))
    shown.append(_of_retain_model(panel, metric))
    for setting in settings:
        interval = setting.interval(metric.column)
        if interval is not None:
            shown += [interval.low, interval.high]
    finite = [number for number in shown if number is not None and math.isfinite(number)]
    if math.isinf(low):
        low = min(finite, default=0.0)
    if math.isinf(high):
        high = max(finite, default=1.0)
    if high <= low:
        # All numbers are equal. They are drawn as full bars.
        return _BarScale(low - 1.0, low)
    return _BarScale(low, high)


def warnings_of(context: PageContext, setting: Setting) -> dict[str, str]:
    """Collect why the scores of a setting are no success.

    Returns:
        Sentences by kind of warning, such as `over-forgotten`. Empty if the scores are a success.
    """
    if setting.why_not:
        return {}
    warnings: dict[str, str] = {}
    for score in context.report.scorers[setting.panel].scores(setting.rows):
        warnings.update(score.warnings)
    return warnings


def warning_mark(context: PageContext, setting: Setting) -> Markup:
    """Name the kinds of a setting's warnings, with a link to the scorecard, which explains them."""
    warnings = warnings_of(context, setting)
    if not warnings:
        return Markup("")
    return Markup(' <a class="warned" href="#scorecard" title="{}">⚠ {}</a>').format(
        "; ".join(warnings.values()), ", ".join(warnings)
    )


def button(setting: Setting, *, unmoved: bool = False) -> Markup:
    """Make a button with the name of a setting's method. It opens the card of the setting's point.

    Args:
        setting: The setting. The card is that of its first seed.
        unmoved: Whether it forgot no more than the start model, which a note then says.
    """
    note = Markup(" <small>no better than the start</small>") if unmoved else ""
    return Markup(
        '<button type="button" class="link" data-run="{}" data-epoch="{}">{}</button>{}'
    ).format(setting.rows[0].run_id, setting.epoch, setting.method, note)
