"""Best settings: one table by the sweep's own rule, if it has one, and one by the page's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.api.benchmark import Headline, HeadlineMetric, HeadlineTest
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

from ...formatting import rate_text, signed, split_cell
from ...html_table import Column, HtmlTable, in_brackets
from ...report_section import PageContext, ReportSection
from .data import (
    SettingsLine,
    SettingsTable,
    caveats,
    exported,
    settings_tables,
)


def _values(context: PageContext) -> Mapping[str, Any]:
    tables = settings_tables(context.report)
    return {
        "tables": [(table, _html_table(table, context)) for table in tables],
        "enough_seeds": ENOUGH_SEEDS,
    }


def _data(context: PageContext) -> dict[str, Any]:
    """Collect the tables as they are copied, by name."""
    return {
        table.name: exported(table, caveats(table, context.claims))
        for table in settings_tables(context.report)
    }


def _html_table(table: SettingsTable, context: PageContext) -> HtmlTable[SettingsLine]:
    headline = table.headline
    kept, forgotten, test = headline.kept, headline.forgotten, headline.forgotten.test
    columns: list[Column[SettingsLine]] = [
        Column("Method", _method, align=""),
        Column("Model", lambda one: one.model, align=""),
        Column("Forget", _split, lambda one: one.forget_fraction),
        _mean(forgotten.short, forgotten, "num strong"),
        _mean(kept.label, kept, "num"),
        Column("kept", _utility_share, lambda one: one.utility_share, is_result=True),
        _of_setting("Rate", lambda s: rate_text(s.learning_rate), lambda s: s.learning_rate),
        _of_setting("Epoch", lambda s: str(s.epoch)),
        *([] if test is None else [_distance(test)]),
        _of_setting("Seeds", lambda s: str(len(s.rows))),
        Column("Settings tried", lambda one: str(one.tried)),
    ]
    if table.chosen_apart:
        by = f"chosen by {forgotten.short if test is None else test.short}, {kept.short}"
        columns.insert(6, Column(by, _chosen_by(headline), _chosen_key, is_result=True))
    return HtmlTable(
        id=table.name,
        label=table.title,
        columns=tuple(columns),
        lines=table.lines,
        family=lambda one: one.family,
        no_result=lambda one: "" if one.setting else one.why_not,
        panel=lambda one: context.panel_number(one.model, one.forget_fraction),
    )


def _split(line: SettingsLine) -> str:
    return split_cell(line.forget_fraction)


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


def _distance(test: HeadlineTest) -> Column[SettingsLine]:
    return _of_setting("KS D", lambda s: signed(s.metrics.get(test.distance), 3))


def _mean(title: str, metric: HeadlineMetric, align: str) -> Column[SettingsLine]:
    name, digits = metric.column, metric.digits

    def text(setting: Setting) -> str:
        interval = setting.interval(name)
        if interval is None:
            return signed(setting.metrics[name], digits)
        prefix = "min-max " if interval.is_range else ""
        ends = (interval.low, interval.high)
        return in_brackets(setting.metrics[name], ends, digits, prefix)

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


def _chosen_by(headline: Headline) -> Callable[[SettingsLine], str]:
    digits = headline.forgotten.digits, headline.kept.digits

    def text(line: SettingsLine) -> str:
        pairs = zip(line.chosen_by or (), digits, strict=False)
        return ", ".join(signed(value, places) for value, places in pairs)

    return text


def _chosen_key(line: SettingsLine) -> float | None:
    return None if line.chosen_by is None else line.chosen_by[0]


SECTION = ReportSection(
    folder="best_settings",
    id="best",
    title="Best settings",
    values=_values,
    data=_data,
)
