"""Best settings: one table by the sweep's own rule, if it has one, and one by the page's."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import (
    Best,
    Panel,
    Setting,
    average_seeds,
    best_first,
    panel_order,
)
from unlearnbench.analysis.selection import entry_name
from unlearnbench.analysis.text import best_rule, share_kept
from unlearnbench.report.best_table import Column, TableFormat, columns, write_table
from unlearnbench.results.outcomes import outcome
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

from ...formatting import interval_names
from ...html_table import HtmlTable
from ...report_section import PageContext, Section

FORMATS: Mapping[str, TableFormat] = {"CSV": "csv", "Markdown": "markdown", "LaTeX": "latex"}


@dataclass(frozen=True)
class SettingsLine(Best):
    """A method on one model and split."""

    tried: int = 1
    """Number of candidates; by the page's rule, every epoch of a setting is one."""
    why_not: str = ""
    """Reason why there is no setting."""


@dataclass(frozen=True)
class SettingsTable:
    """Best settings by one rule."""

    name: str
    title: str
    rule: str
    seeds: tuple[int, ...]
    """Seeds that the numbers are means over."""
    lines: tuple[SettingsLine, ...]
    chosen_apart: bool = False
    """True if the choice was made on other seeds than those reported."""


@lru_cache(maxsize=1)
def settings_tables(context: PageContext) -> tuple[SettingsTable, ...]:
    """Collect the tables by the sweep's rule, if it has chosen, and by the page's rule."""
    report = context.report
    by_rule = SettingsTable(
        name="best",
        title="Best setting of each method",
        rule=f"among all learning rates, hyper-parameters and epochs, {best_rule(report.headline)}",
        seeds=tuple(sorted({r.seed for r in report.rows if r.kind == "run"})),
        lines=_ordered([*_judged(context), *_unevaluated(context)]),
    )
    if (selection := report.selection) is None:
        return (by_rule,)
    on = ", ".join(map(str, selection["chosen_on_seeds"]))
    declared = SettingsTable(
        name="declared",
        title=f"Best settings by the sweep's own rule, chosen on seeds {on}",
        rule=selection["rule"],
        seeds=tuple(selection["reported_on_seeds"]),
        lines=_ordered([_declared(context, choice) for choice in selection["choices"]]),
        chosen_apart=True,
    )
    return declared, by_rule


def _judged(context: PageContext) -> list[SettingsLine]:
    why_not = f"no setting keeps {share_kept(context.report.headline)}"
    lines: list[SettingsLine] = []
    for panel in context.panels:
        for best in panel.best:
            of = [s for s in panel.settings if s.family == best.family and s.epoch > 0]
            reason = _fault(panel) or ("" if best.setting else why_not)
            lines.append(
                SettingsLine(*panel.panel, best.method, best.family, best.setting, len(of), reason)
            )
    return lines


def _fault(panel: Panel) -> str:
    if not panel.start.utility:
        return "not judged: no start model"
    return panel.start.fault and f"not judged: {panel.start.fault.partition(':')[0]}"


def _unevaluated(context: PageContext) -> list[SettingsLine]:
    """List the methods of which no run was evaluated, for example because the loss was NaN."""
    seen = {(*row.panel, row.family) for row in context.report.rows}
    lines = {
        (*record.panel, record.method): SettingsLine(
            *record.panel,
            record.method,
            record.method,
            None,
            why_not=f"no number: {record.status}, {outcome(record).reason or 'no message'}",
        )
        for record in context.report.without_result
    }
    return [line for key, line in lines.items() if key not in seen]


def _declared(context: PageContext, choice: Mapping[str, Any]) -> SettingsLine:
    location = choice["model"], choice["forget_fraction"]
    ids, epoch = {*choice["reported_runs"]}, choice["epoch"]
    rows = [r for r in context.report.rows if r.run_id in ids and r.epoch == epoch]
    fault = next((_fault(panel) for panel in context.panels if panel.panel == location), "")
    setting = None if fault else next(iter(average_seeds(rows)), None)
    reason = fault or choice["why_not"] or "chosen; no run on the other seeds has ended yet"
    return SettingsLine(
        *location,
        choice["setting"] or entry_name(choice),
        choice["method"],
        setting,
        choice["candidates"],
        "" if setting else reason,
    )


def _ordered(lines: list[SettingsLine]) -> tuple[SettingsLine, ...]:
    """Sort by model and split, then the best first."""

    def key(line: SettingsLine) -> Any:
        return panel_order(line.panel), best_first(line.setting, line.family)

    return tuple(sorted(lines, key=key))


def texts(table: SettingsTable, context: PageContext) -> dict[str, str]:
    """Write the table as the page copies it, by format; empty without a setting."""
    if not any(line.setting for line in table.lines):
        return {}
    chosen = table.lines, context.report.headline, table.rule
    return {name: write_table(*chosen, kind) for name, kind in FORMATS.items()}


class BestSettings(Section):
    """The tables of best settings, which can be copied."""

    name, title, order, folder = "best", "Best settings", 40, "best_settings"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Make the tables."""
        tables = settings_tables(context)
        settings = [line.setting for table in tables for line in table.lines if line.setting]
        column = context.report.headline.forgotten.column
        return {
            "tables": [(table, _html_table(table, context)) for table in tables],
            "brackets": interval_names(setting.interval(column) for setting in settings),
            "few": any(len(setting.rows) < ENOUGH_SEEDS for setting in settings),
        }

    def data(self, context: PageContext) -> Any:
        """Collect the tables as they are copied, by name and format."""
        tables = settings_tables(context)
        return {table.name: texts(table, context) for table in tables}


def _html_table(table: SettingsTable, context: PageContext) -> HtmlTable:
    _, *others = columns(table.lines, context.report.headline)
    starts = {panel.panel: panel.start for panel in context.panels}

    def method(line: SettingsLine) -> Markup:
        if line.setting is None:
            return Markup("{} <small>{}</small>").format(line.method, line.why_not)
        return button(line.setting, unmoved=starts[line.panel].unmoved(line.setting.forgotten))

    tried = Column("Tried", lambda line: str(line.tried))
    return HtmlTable(
        id=table.name,
        label=table.title,
        columns=[Column("Method", method, align=""), *others, tried],
        lines=table.lines,
        family=lambda line: line.family,
        panel=lambda line: context.panel_number(*line.panel),
    )


def button(setting: Setting, *, unmoved: bool = False) -> Markup:
    """Make the name of a setting's method, which opens the card of its point."""
    note = Markup(" <small>no better than the start</small>") if unmoved else ""
    return Markup(
        '<button type="button" class="link" data-run="{}" data-epoch="{}">{}</button>{}'
    ).format(setting.rows[0].run_id, setting.epoch, setting.method, note)
