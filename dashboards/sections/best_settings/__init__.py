"""Best settings: one table by the sweep's own rule, if it has one, and one by the page's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

from ...formatting import interval_text, rate_text, signed, split_cell
from ...html_table import Column, HtmlTable, in_brackets
from ...report_section import PageContext, ReportSection
from .data import SettingsLine, SettingsTable, settings_tables, texts


def _values(context: PageContext) -> Mapping[str, Any]:
    tables = settings_tables(context.report)
    return {
        "tables": [(table, _html_table(table, context)) for table in tables],
        "enough_seeds": ENOUGH_SEEDS,
    }


def _data(context: PageContext) -> dict[str, Any]:
    """Collect the tables as they are copied, by name and format."""
    tables = settings_tables(context.report)
    return {table.name: texts(table, context.report) for table in tables}


def _html_table(table: SettingsTable, context: PageContext) -> HtmlTable[SettingsLine]:
    headline = table.headline
    kept, forgotten, test = headline.kept, headline.forgotten, headline.forgotten.test
    columns: list[Column[SettingsLine]] = [
        Column("Method", _method, align=""),
        Column("Model", lambda one: one.model, align=""),
        Column(
            "Forget", lambda one: split_cell(one.forget_fraction), lambda one: one.forget_fraction
        ),
        _mean(forgotten.short, forgotten, "num strong"),
        _mean(kept.label, kept, "num"),
        Column("kept", _utility_share, lambda one: one.utility_share, is_result=True),
        _of_setting(
            "Learning rate", lambda s: rate_text(s.learning_rate), lambda s: s.learning_rate
        ),
        _of_setting("Epoch", lambda s: str(s.epoch)),
        *([_of_setting("KS D", lambda s: signed(s.metrics.get(test.distance), 3))] if test else []),
        _of_setting("Seeds", lambda s: str(len(s.rows))),
        Column("Tried", lambda one: str(one.tried)),
    ]
    if table.name == "best":
        methods = {
            (panel.model, panel.forget_fraction, one.method): one.place
            for panel in context.claims.panels
            for one in panel.methods
        }

        def place(one: SettingsLine) -> int | None:
            return methods.get((one.model, one.forget_fraction, one.family))

        columns.insert(1, Column("Place", lambda one: str(place(one) or ""), place))
    if table.chosen_apart:
        by = f"chosen by {forgotten.short if test is None else test.short}, {kept.short}"
        chosen: Column[SettingsLine] = Column(
            by,
            lambda one: _chosen_by(one, headline),
            lambda one: one.chosen_by[0] if one.chosen_by else None,
            is_result=True,
        )
        columns.insert(6, chosen)
    return HtmlTable(
        id=table.name,
        label=table.title,
        columns=tuple(columns),
        lines=table.lines,
        family=lambda one: one.family,
        no_result=lambda one: "" if one.setting else one.why_not,
        panel=lambda one: context.panel_number(one.model, one.forget_fraction),
    )


def _of_setting(
    title: str,
    text: Callable[[Setting], str],
    key: Callable[[Setting], float | None] | None = None,
    align: str = "num",
) -> Column[SettingsLine]:
    """Make a column of values of the best setting."""
    return Column(
        title,
        lambda one: text(one.setting) if one.setting else "",
        None if key is None else lambda one: key(one.setting) if one.setting else None,
        align,
        is_result=True,
    )


def _mean(title: str, metric: HeadlineMetric, align: str) -> Column[SettingsLine]:
    name, digits = metric.column, metric.digits

    def text(setting: Setting) -> str:
        interval = setting.interval(name)
        if interval is None:
            return signed(setting.metrics[name], digits)
        return in_brackets(setting.metrics[name], interval_text(interval, digits), digits)

    return _of_setting(title, text, lambda setting: setting.metrics[name], align)


def _method(line: SettingsLine) -> str:
    if line.setting is None:
        return line.method
    note = Markup(" <small>no better than the start</small>") if line.unmoved else ""
    return Markup(
        '<button type="button" class="link" data-run="{}" data-epoch="{}">{}</button>{}'
    ).format(line.setting.rows[0].run_id, line.setting.epoch, line.method, note)


def _utility_share(line: SettingsLine) -> str:
    return "" if line.utility_share is None else f"{100 * line.utility_share:.0f} %"


def _chosen_by(line: SettingsLine, headline: Headline) -> str:
    pairs = zip(line.chosen_by or (), (headline.forgotten, headline.kept), strict=False)
    return ", ".join(signed(value, metric.digits) for value, metric in pairs)


SECTION = ReportSection(
    "best_settings", "best", "Best settings", _values, nav="Best", lazy_data=_data
)
