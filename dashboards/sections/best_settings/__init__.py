"""Best settings: one table by the sweep's own rule, if it has one, and one by the page's."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Setting,
    Start,
    average_seeds,
    best_first,
)
from unlearnbench.api.benchmark import Headline, HeadlineMetric, SplitKey
from unlearnbench.report.best_table import TableFormat, best_table
from unlearnbench.results.outcomes import outcome
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

from ...formatting import interval_names, interval_text, rate_text, signed, split_cell
from ...html_table import Column, HtmlTable, in_brackets
from ...report_section import PageContext, Section


@dataclass(frozen=True)
class SettingsLine:
    """A method on one model and split."""

    model: str
    forget_fraction: SplitKey
    family: str
    method: str
    """Label; with hyper-parameters if the sweep has several settings of the method."""
    tried: int
    """Number of candidates; by the page's rule, every epoch of a setting is one."""
    start: Start | None
    """None of a panel where nothing was evaluated."""
    setting: Setting | None
    why_not: str
    """Reason why there is no setting."""
    chosen_by: tuple[float, float] | None = None
    """(forgotten, kept) on the seeds of the choice, if others are reported."""

    @property
    def forgotten(self) -> float | None:
        """The headline's number of what is forgotten."""
        return None if self.setting is None else self.setting.forgotten

    @property
    def unmoved(self) -> bool:
        """True if the best setting forgets no more than the start model."""
        return self.start is not None and self.start.unmoved(self.forgotten)

    @property
    def utility_share(self) -> float | None:
        """Share of what the start model keeps."""
        utility = None if self.setting is None else self.setting.kept
        start = None if self.start is None else self.start.utility
        return utility / start if utility is not None and start else None


@dataclass(frozen=True)
class SettingsTable:
    """Best settings by one rule."""

    name: str
    title: str
    rule: str
    seeds: tuple[int, ...]
    """Seeds that the numbers are means over."""
    lines: tuple[SettingsLine, ...]
    headline: Headline

    @property
    def chosen_apart(self) -> bool:
        """True if the choice was made on other seeds than those reported."""
        return any(line.chosen_by for line in self.lines)

    @property
    def brackets(self) -> list[str]:
        """Names of the intervals in brackets."""
        column = self.headline.forgotten.column
        return interval_names(
            line.setting.interval(column) for line in self.lines if line.setting is not None
        )

    @property
    def fewest_seeds(self) -> int | None:
        """Smallest number of seeds behind a line."""
        result = [len(line.setting.rows) for line in self.lines if line.setting]
        return min(result, default=None)


@lru_cache(maxsize=1)
def settings_tables(context: PageContext) -> tuple[SettingsTable, ...]:
    """Collect the tables by the sweep's rule, if it has chosen, and by the page's rule."""
    part, selection = _by_default(context), context.report.selection
    return (part,) if selection is None else (_declared(context, selection), part)


def _by_default(context: PageContext) -> SettingsTable:
    report = context.report
    kept, forgotten = report.headline.kept, report.headline.forgotten
    lines: list[SettingsLine] = []
    for panel in context.panels:
        start, rows = panel.start, panel.rows
        for best in panel.judged:
            location = (panel.model, panel.forget_fraction, best.family)
            part = [row for row in rows if row.family == best.family and row.epoch > 0]
            tried = len({(row.method, row.learning_rate, row.epoch) for row in part})
            why_not = f"no setting keeps {UTILITY_SHARE:.0%} of {kept.short}"
            if not start.utility:
                why_not = "not judged: no start model"
            line = SettingsLine(*location, best.method, tried, start, best.setting, why_not)
            lines.append(_judged(line))
    return SettingsTable(
        name="best",
        title="Best setting of each method",
        rule=f"among all learning rates, hyper-parameters and epochs, the {forgotten.best_word} "
        f"{forgotten.label} of those that keep at least {UTILITY_SHARE:.0%} of the start "
        f"model's {kept.short}",
        seeds=tuple(sorted({r.seed for r in report.rows if r.kind == "run"})),
        lines=_ordered(context, [*lines, *_unevaluated(context)]),
        headline=report.headline,
    )


def _unevaluated(context: PageContext) -> list[SettingsLine]:
    """List the methods of which no run was evaluated, for example because the loss was NaN."""
    seen = {(row.model, row.forget_fraction, row.family) for row in context.report.rows}
    lines: dict[tuple[str, SplitKey, str], SettingsLine] = {}
    ended = context.report.without_result
    for record in ended:
        location = (record.model, record.forget_fraction, record.method)
        rates = {
            other.learning_rate
            for other in ended
            if (other.model, other.forget_fraction, other.method) == location
        }
        why_not = f"no number: {record.status}, {outcome(record).reason or 'no message'}"
        if location not in seen and location not in lines:
            lines[location] = SettingsLine(
                *location, record.method, len(rates), None, None, why_not
            )
    return [*lines.values()]


def _declared(context: PageContext, selection: Mapping[str, Any]) -> SettingsTable:
    headline = context.report.headline
    starts = {(panel.model, panel.forget_fraction): panel.start for panel in context.panels}
    lines: list[SettingsLine] = []
    for choice in selection["choices"]:
        ids, epoch = {*choice["reported_runs"]}, choice["epoch"]
        reported = [r for r in context.report.rows if r.run_id in ids and r.epoch == epoch]
        by = (choice[headline.forgotten.column], choice[headline.kept.column])
        line = SettingsLine(
            choice["model"],
            choice["forget_fraction"],
            choice["method"],
            choice["setting"] or choice["method"],
            choice["candidates"],
            starts.get((choice["model"], choice["forget_fraction"])),
            next(iter(average_seeds(reported)), None),
            choice["why_not"] or "chosen; no run on the other seeds has ended yet",
            None if None in by else by,
        )
        lines.append(_judged(line))
    on = ", ".join(map(str, selection["chosen_on_seeds"]))
    return SettingsTable(
        name="declared",
        title=f"Best settings by the sweep's own rule, chosen on seeds {on}",
        rule=selection["rule"],
        seeds=tuple(selection["reported_on_seeds"]),
        lines=_ordered(context, lines),
        headline=headline,
    )


def _judged(line: SettingsLine) -> SettingsLine:
    """The line without its setting, where the start model is faulty."""
    if line.start is None or not line.start.fault:
        return line
    return replace(line, setting=None, why_not=f"not judged: {line.start.fault.partition(':')[0]}")


def _ordered(context: PageContext, lines: Iterable[SettingsLine]) -> tuple[SettingsLine, ...]:
    """Sort by model and fraction as in the table of all numbers, then the best first."""
    places = {(panel.model, panel.forget_fraction): i for i, panel in enumerate(context.panels)}

    def key(line: SettingsLine) -> tuple[int, tuple[float, float, int, str]]:
        number = places.get((line.model, line.forget_fraction), len(places))
        return number, best_first(line.setting, line.family)

    return tuple(sorted(lines, key=key))


def texts(table: SettingsTable, context: PageContext) -> dict[str, str]:
    """Write the table as the page copies it, by format; empty without a setting."""
    rows = context.report.rows
    if table.name == "declared":  # these settings alone, whatever the page's rule would choose
        chosen = [row for line in table.lines if line.setting for row in line.setting.rows]
        rows = (*(row for row in rows if row.kind != "run"), *chosen)
    if not any(line.setting for line in table.lines):
        return {}
    formats: dict[str, TableFormat] = {"CSV": "csv", "Markdown": "markdown", "LaTeX": "latex"}
    return {name: best_table(rows, kind) for name, kind in formats.items()}


class BestSettings(Section):
    """The tables of best settings, which can be copied."""

    name, title, order, folder = "best", "Best settings", 40, "best_settings"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Make the tables."""
        tables = settings_tables(context)
        return {
            "tables": [(table, _html_table(table, context)) for table in tables],
            "enough_seeds": ENOUGH_SEEDS,
        }

    def data(self, context: PageContext) -> Any:
        """Collect the tables as they are copied, by name and format."""
        tables = settings_tables(context)
        return {table.name: texts(table, context) for table in tables}


def _html_table(table: SettingsTable, context: PageContext) -> HtmlTable[SettingsLine]:
    headline = table.headline
    kept, forgotten, test = headline.kept, headline.forgotten, headline.forgotten.test
    places = {
        (panel.model, panel.forget_fraction, method.method): method.place
        for panel in context.report.claims.panels
        for method in panel.methods
    }

    def place(line: SettingsLine) -> int | None:
        return places.get((line.model, line.forget_fraction, line.family))

    def chosen_by(line: SettingsLine) -> str:
        pairs = zip(line.chosen_by or (), (forgotten, kept), strict=False)
        return ", ".join(signed(value, metric.digits) for value, metric in pairs)

    by = f"chosen by {forgotten.short if test is None else test.short}, {kept.short}"
    columns: list[Column[SettingsLine] | None] = [
        Column("Method", _method, align=""),
        Column("Place", lambda item: str(place(item) or ""), place)
        if table.name == "best"
        else None,
        Column("Model", lambda item: item.model, align=""),
        Column(
            "Forget",
            lambda item: split_cell(item.forget_fraction),
            lambda item: item.forget_fraction,
        ),
        _mean(forgotten.short, forgotten, "num strong"),
        _mean(kept.label, kept, "num"),
        Column("kept", _utility_share, lambda item: item.utility_share, is_result=True),
        Column(
            by,
            chosen_by,
            lambda item: item.chosen_by[0] if item.chosen_by else None,
            is_result=True,
        )
        if table.chosen_apart
        else None,
        _of_setting(
            "Learning rate", lambda s: rate_text(s.learning_rate), lambda s: s.learning_rate
        ),
        _of_setting("Epoch", lambda s: str(s.epoch)),
        _of_setting("KS D", lambda s: signed(s.metrics.get(test.distance), 3)) if test else None,
        _of_setting("Seeds", lambda s: str(len(s.rows))),
        Column("Tried", lambda item: str(item.tried)),
    ]
    return HtmlTable(
        id=table.name,
        label=table.title,
        columns=tuple(column for column in columns if column is not None),
        lines=table.lines,
        family=lambda item: item.family,
        no_result=lambda item: "" if item.setting else item.why_not,
        panel=lambda item: context.panel_number(item.model, item.forget_fraction),
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
        lambda item: text(item.setting) if item.setting else "",
        None if key is None else lambda item: key(item.setting) if item.setting else None,
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
