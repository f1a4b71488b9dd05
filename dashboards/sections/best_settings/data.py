"""The tables of best settings: by the sweep's own `select` rule, and by the page's.

A table on the page and the copy of it have the same values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Setting,
    average_seeds,
    best_per_method,
    panel_label,
)
from unlearnbench.analysis.order_confidence import OrderConfidence
from unlearnbench.analysis.start_models import Start, start_of
from unlearnbench.api.benchmark import Headline, SplitKey
from unlearnbench.reporting.report import Report
from unlearnbench.results.outcomes import outcome
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval

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
    def brackets(self) -> tuple[str, ...]:
        """Names of the intervals in brackets."""
        found = {
            interval.n: interval.name
            for line in self.lines
            if line.setting is not None and (interval := _interval(line.setting)) is not None
        }
        return tuple(name for _, name in sorted(found.items()))

    @property
    def fewest_seeds(self) -> int | None:
        """Smallest number of seeds behind a line."""
        found = [len(line.setting.rows) for line in self.lines if line.setting]
        return min(found, default=None)


def settings_tables(report: Report) -> tuple[SettingsTable, ...]:
    """Compute the tables by the sweep's rule, if it has chosen, and by the page's rule."""
    own = _by_default(report)
    return (own,) if report.selection is None else (_declared(report, report.selection), own)


def _by_default(report: Report) -> SettingsTable:
    rows = report.rows
    tried: dict[Place, set[tuple[str, float | None, int]]] = defaultdict(set)
    for row in rows:
        if row.epoch > 0:
            place = (row.model, row.forget_fraction, row.family)
            tried[place].add((row.method, row.learning_rate, row.epoch))
    lines: list[SettingsLine] = []
    starts = {
        panel: start_of(rows, *panel) for panel in {(r.model, r.forget_fraction) for r in rows}
    }
    for best in best_per_method(rows):
        place = (best.model, best.forget_fraction, best.family)
        start = starts[best.model, best.forget_fraction]
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
        f"{forgotten.label} of those that keep at least {UTILITY_SHARE:.0%} of the fine-tuned "
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


def _unevaluated(report: Report) -> list[SettingsLine]:
    """List the methods of which no run was evaluated, for example because the loss was NaN."""
    seen = {(row.model, row.forget_fraction, row.family) for row in report.rows}
    ended: dict[Place, list[Record]] = defaultdict(list)
    for record in report.without_result:
        place = (record.model, record.forget_fraction, record.method)
        if place not in seen:
            ended[place].append(record)
    lines: list[SettingsLine] = []
    for (model, fraction, method), records in ended.items():
        start = start_of(report.rows, model, fraction)
        tried = len({r.learning_rate for r in records})
        reason = outcome(records[0]).reason or "no message"
        why_not = f"no number: {records[0].status}, {reason}"
        lines.append(SettingsLine(model, fraction, method, method, tried, start, None, why_not))
    return lines


def _declared(report: Report, selection: Mapping[str, Any]) -> SettingsTable:
    headline = report.headline
    lines: list[SettingsLine] = []
    for choice in selection["choices"]:
        ids = set(choice["reported_runs"])
        here = [r for r in report.rows if r.run_id in ids and r.epoch == choice["epoch"]]
        setting = next(iter(average_seeds(here)), None)
        start = start_of(report.rows, choice["model"], choice["forget_fraction"])
        unfinished = "chosen; no run on the other seeds has ended yet"
        judged = _judged(start, setting, choice["why_not"] or unfinished)
        by = (choice[headline.forgotten.column], choice[headline.kept.column])
        lines.append(
            SettingsLine(
                choice["model"],
                choice["forget_fraction"],
                choice["method"],
                choice["setting"] or choice["method"],
                choice["candidates"],
                start,
                *judged,
                chosen_by=None if None in by else by,
            )
        )
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

    def key(line: SettingsLine) -> tuple[int, float, str]:
        place = (line.model, line.forget_fraction)
        number = places.index(place) if place in places else len(places)
        quality, oriented = line.forgotten, line.start.headline.forgotten.oriented
        return number, math.inf if quality is None else -oriented(quality), line.family

    return tuple(sorted(lines, key=key))


def caveats(table: SettingsTable, claims: OrderConfidence) -> tuple[str, ...]:
    """List the caveats that are copied with the table, one sentence each."""
    placed = [line for line in table.lines if line.setting is not None]
    sentences: list[str] = []
    if (fewest := table.fewest_seeds) is not None and fewest < ENOUGH_SEEDS:
        what = "Fewer than three seeds stand" if fewest > 1 else "One seed stands"
        sentences.append(f"{what} behind some lines: differences between them may be chance.")
    counts = sorted({line.tried for line in placed})
    if counts and counts[-1] > 1 and not table.chosen_apart:
        number = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        sentences.append(
            f"Each line is the best of {number} settings (learning rates x hyper-parameters x "
            "epochs), chosen by the numbers shown, which favours methods with more of them."
        )
    for one in claims.panels:
        place = f"{panel_label(one.model, one.forget_fraction)}: "
        prefix = place if len(claims.panels) > 1 else ""
        found = [] if one.rivals is None else [*one.rivals.sentences]
        sentences += [prefix + each.replace("`", "") for each in (*found, *one.unequal)]
    return tuple(sentences)


def exported(table: SettingsTable, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """Collect what the page copies as CSV, Markdown and LaTeX: exact values, and the rule."""
    test = table.headline.forgotten.test
    return {
        "title": table.title,
        "rule": table.rule,
        "distance": None if test is None else test.distance,
        "seeds": list(table.seeds),
        "caveats": list(caveats),
        "lines": [
            {
                "method": line.method,
                "model": line.model,
                "fraction": line.forget_fraction,
                "tried": line.tried,
                "note": line.why_not,
                **(_exported(line.setting) if line.setting else {}),
                "kept": line.utility_share,
            }
            for line in table.lines
        ],
    }


def _exported(setting: Setting) -> dict[str, Any]:
    kept, forgotten = setting.headline.kept.column, setting.headline.forgotten
    interval = setting.interval(forgotten.column) or setting.interval(kept)
    distance = None if forgotten.test is None else forgotten.test.distance
    return {
        "interval": None if interval is None else interval.name,
        "range": interval is not None and interval.is_range,
        "rate": setting.learning_rate,
        "epoch": setting.epoch,
        "seeds": [row.seed for row in setting.rows],
        "quality": _numbers(setting, forgotten.column),
        "utility": _numbers(setting, kept),
        "statistic": None if distance is None else setting.metrics.get(distance),
    }


def _numbers(setting: Setting, metric: str) -> dict[str, Any]:
    """Collect the mean and, with several seeds, its interval and the standard deviation."""
    interval = setting.interval(metric)
    mean = {"mean": setting.metrics[metric]}
    if interval is None:
        return mean
    return mean | {"low": interval.low, "high": interval.high, "spread": interval.spread}


def _interval(setting: Setting) -> Interval | None:
    return setting.interval(setting.headline.forgotten.column)
