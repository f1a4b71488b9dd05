"""The tables of best settings: by the sweep's own `select` rule, and by the page's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Setting,
    Start,
    average_seeds,
    best_first,
)
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import Headline, SplitKey
from unlearnbench.reporting.best_table import TableFormat, best_table
from unlearnbench.results.outcomes import outcome
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

from ...formatting import interval_names

Place = tuple[str, SplitKey, str]
"""Model, forget fraction and method."""


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
    start: Start
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
        return self.start.unmoved(self.forgotten)

    @property
    def utility_share(self) -> float | None:
        """Share of what the start model keeps."""
        utility = None if self.setting is None else self.setting.kept
        start = self.start.utility
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
            one.setting.interval(column) for one in self.lines if one.setting is not None
        )

    @property
    def fewest_seeds(self) -> int | None:
        """Smallest number of seeds behind a line."""
        found = [len(line.setting.rows) for line in self.lines if line.setting]
        return min(found, default=None)


def settings_tables(report: Results) -> tuple[SettingsTable, ...]:
    """Compute the tables by the sweep's rule, if it has chosen, and by the page's rule."""
    own = _by_default(report)
    return (own,) if report.selection is None else (_declared(report, report.selection), own)


def _by_default(report: Results) -> SettingsTable:
    rows = report.rows
    tried: dict[Place, set[tuple[str, float | None, int]]] = defaultdict(set)
    for row in rows:
        if row.epoch > 0:
            place = (row.model, row.forget_fraction, row.family)
            tried[place].add((row.method, row.learning_rate, row.epoch))
    lines: list[SettingsLine] = []
    for best in (best for panel in report.panels for best in panel.best):
        place = (best.model, best.forget_fraction, best.family)
        start = report.start_of(*best.panel)
        why_not = f"no setting keeps {UTILITY_SHARE:.0%} of {report.headline.kept.short}"
        if not start.utility:
            why_not = "not judged: no start model"
        judged = _judged(start, best.setting, why_not)
        lines.append(SettingsLine(*place, best.method, len(tried[place]), start, *judged))
    kept, forgotten = report.headline.kept, report.headline.forgotten
    return SettingsTable(
        name="best",
        title="Best setting of each method",
        rule=f"among all learning rates, hyper-parameters and epochs, the {forgotten.best_word} "
        f"{forgotten.label} of those that keep at least {UTILITY_SHARE:.0%} of the start "
        f"model's {kept.short}",
        seeds=tuple(sorted({r.seed for r in rows if r.kind == "run"})),
        lines=_ordered([*lines, *_unevaluated(report)], rows),
        headline=report.headline,
    )


def _judged(start: Start, setting: Setting | None, why_not: str) -> tuple[Setting | None, str]:
    """Return the setting, and the reason if there is none; a faulty start model has none."""
    if start.fault:
        return None, f"not judged: {start.fault.partition(':')[0]}"
    return setting, "" if setting else why_not


def _unevaluated(report: Results) -> list[SettingsLine]:
    """List the methods of which no run was evaluated, for example because the loss was NaN."""
    seen = {(row.model, row.forget_fraction, row.family) for row in report.rows}
    ended: dict[Place, list[Record]] = defaultdict(list)
    for record in report.without_result:
        place = (record.model, record.forget_fraction, record.method)
        if place not in seen:
            ended[place].append(record)
    lines: list[SettingsLine] = []
    for (model, fraction, method), records in ended.items():
        start = report.start_of(model, fraction)
        tried = len({r.learning_rate for r in records})
        reason = outcome(records[0]).reason or "no message"
        why_not = f"no number: {records[0].status}, {reason}"
        lines.append(SettingsLine(model, fraction, method, method, tried, start, None, why_not))
    return lines


def _declared(report: Results, selection: Mapping[str, Any]) -> SettingsTable:
    headline = report.headline
    lines: list[SettingsLine] = []
    for choice in selection["choices"]:
        ids = set(choice["reported_runs"])
        here = [r for r in report.rows if r.run_id in ids and r.epoch == choice["epoch"]]
        setting = next(iter(average_seeds(here)), None)
        place = (choice["model"], choice["forget_fraction"])
        start = report.start_of(*place)
        unfinished = "chosen; no run on the other seeds has ended yet"
        judged = _judged(start, setting, choice["why_not"] or unfinished)
        by = (choice[headline.forgotten.column], choice[headline.kept.column])
        method, tried = choice["method"], choice["candidates"]
        label = choice["setting"] or method
        chosen_by = None if None in by else by
        lines.append(SettingsLine(*place, method, label, tried, start, *judged, chosen_by))
    on = ", ".join(map(str, selection["chosen_on_seeds"]))
    return SettingsTable(
        name="declared",
        title=f"Best settings by the sweep's own rule, chosen on seeds {on}",
        rule=selection["rule"],
        seeds=tuple(selection["reported_on_seeds"]),
        lines=_ordered(lines, report.rows),
        headline=headline,
    )


def _ordered(lines: Sequence[SettingsLine], rows: Sequence[TableRow]) -> tuple[SettingsLine, ...]:
    """Sort by model and fraction as in the table of all numbers, then the best first."""
    places = list(dict.fromkeys((row.model, row.forget_fraction) for row in rows))

    def key(line: SettingsLine) -> tuple[int, tuple[float, float, int, str]]:
        place = (line.model, line.forget_fraction)
        number = places.index(place) if place in places else len(places)
        return number, best_first(line.setting, line.family)

    return tuple(sorted(lines, key=key))


def texts(table: SettingsTable, report: Results) -> dict[str, str]:
    """Write the table as the page copies it, by format; empty without a setting."""
    rows = report.rows
    if table.name == "declared":  # these settings alone, whatever the page's rule would choose
        chosen = [row for line in table.lines if line.setting for row in line.setting.rows]
        rows = (*(row for row in rows if row.kind != "run"), *chosen)
    if not any(line.setting for line in table.lines):
        return {}
    formats: dict[str, TableFormat] = {"CSV": "csv", "Markdown": "markdown", "LaTeX": "latex"}
    return {name: best_table(rows, kind) for name, kind in formats.items()}
