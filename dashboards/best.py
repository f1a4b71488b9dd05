"""The tables of best settings: by the sweep's own `select` rule, and by the page's.

What a table shows and what is copied out of it are the same values; the page only formats them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.claims import Claims
from unlearnbench.intervals import ENOUGH_SEEDS
from unlearnbench.outcomes import outcome
from unlearnbench.ranking import (
    UTILITY_SHARE,
    Setting,
    average_seeds,
    best_per_method,
)
from unlearnbench.records import Record
from unlearnbench.report import Report
from unlearnbench.starts import Start, start_of
from unlearnbench.table import Row

QUALITY, UTILITY = "log10_forget_quality", "model_utility"


@dataclass(frozen=True)
class Line:
    """A method on one model and forget fraction."""

    family: str
    method: str
    """Label with hyper-parameters where the sweep has several settings of the method."""
    model: str
    forget_fraction: float
    tried: int
    """Settings that could have been chosen; by the page's rule, each after each epoch."""
    setting: Setting | None
    why_not: str = ""
    """Why there is no setting."""
    unmoved: bool = False
    """True where the best setting forgets no more than the start: it did nothing."""
    kept: float | None = None
    """Share of the fine-tuned model's utility."""
    chosen_by: tuple[float, float] | None = None
    """(log10 Forget Quality, Model Utility) on the seeds of the choice, where others report."""


@dataclass(frozen=True)
class Table:
    """Best settings by one rule."""

    name: str
    title: str
    rule: str
    seeds: tuple[int, ...]
    """Those that the numbers are means over."""
    lines: tuple[Line, ...]

    @property
    def chosen_apart(self) -> bool:
        """Whether the choice was made on other seeds than those reported."""
        return any(line.chosen_by for line in self.lines)

    @property
    def brackets(self) -> tuple[str, ...]:
        """What stands in the brackets of its lines, for people."""
        found = {
            interval.n: interval.name
            for line in self.lines
            if line.setting is not None and (interval := line.setting.interval(QUALITY)) is not None
        }
        return tuple(name for _, name in sorted(found.items()))

    @property
    def fewest_seeds(self) -> int | None:
        """Behind any of its numbers."""
        found = [len(line.setting.rows) for line in self.lines if line.setting]
        return min(found, default=None)


def tables(report: Report) -> tuple[Table, ...]:
    """By the declared rule first, where something was chosen by it; then by the page's."""
    own = _by_default(report)
    return (own,) if report.selection is None else (_declared(report, report.selection), own)


def _by_default(report: Report) -> Table:
    rows = report.rows
    tried: dict[tuple[str, float, str], set[tuple[str, float | None, int]]] = defaultdict(set)
    for row in rows:
        if row.epoch > 0:
            place = (row.model, row.forget_fraction, row.family)
            tried[place].add((row.method, row.learning_rate, row.epoch))
    lines: list[Line] = []
    for best in best_per_method(rows):
        start = start_of(rows, best.model, best.forget_fraction)
        setting = None if start.fault else best.setting
        lines.append(
            Line(
                family=best.family,
                method=best.method,
                model=best.model,
                forget_fraction=best.forget_fraction,
                tried=len(tried[best.model, best.forget_fraction, best.family]),
                setting=setting,
                why_not="" if setting else _why_not(start),
                unmoved=setting is not None and start.unmoved(setting.metrics[QUALITY]),
                kept=_kept(setting, start.utility),
            )
        )
    return Table(
        name="best",
        title="Best setting of each method",
        rule="among all learning rates, hyper-parameters and epochs, the highest log₁₀ Forget "
        f"Quality of those that keep at least {UTILITY_SHARE:.0%} of the fine-tuned model's "
        "utility",
        seeds=tuple(sorted({r.seed for r in rows if r.kind == "run"})),
        lines=_ordered([*lines, *_unevaluated(report)], rows),
    )


def _why_not(start: Start) -> str:
    if start.fault:
        return f"not judged: {start.fault.partition(':')[0]}"
    if not start.utility:
        return "not judged: no start model"
    return f"no setting keeps {UTILITY_SHARE:.0%} of utility"


def _unevaluated(report: Report) -> list[Line]:
    """The methods that have runs and no number at all, such as of a loss that is NaN at once."""
    seen = {(row.model, row.forget_fraction, row.family) for row in report.rows}
    ended: dict[tuple[str, float, str], list[Record]] = defaultdict(list)
    for record in report.without_result:
        place = (record.model, record.forget_fraction, record.method)
        if place not in seen:
            ended[place].append(record)
    return [
        Line(
            family=method,
            method=method,
            model=model,
            forget_fraction=fraction,
            tried=len({r.learning_rate for r in records}),
            setting=None,
            why_not=f"no number: {records[0].status}, {outcome(records[0]).reason or 'no message'}",
        )
        for (model, fraction, method), records in ended.items()
    ]


def _declared(report: Report, selection: Mapping[str, Any]) -> Table:
    lines: list[Line] = []
    for choice in selection["choices"]:
        ids = set(choice["reported_runs"])
        here = [r for r in report.rows if r.run_id in ids and r.epoch == choice["epoch"]]
        setting = next(iter(average_seeds(here)), None)
        start = start_of(report.rows, choice["model"], choice["forget_fraction"])
        if start.fault:
            setting = None
        by = (choice[QUALITY], choice[UTILITY])
        lines.append(
            Line(
                family=choice["method"],
                method=choice["setting"] or choice["method"],
                model=choice["model"],
                forget_fraction=choice["forget_fraction"],
                tried=choice["candidates"],
                setting=setting,
                why_not=(_why_not(start) if start.fault else choice["why_not"])
                or ("" if setting else "chosen; no run on the other seeds has ended yet"),
                unmoved=setting is not None and start.unmoved(setting.metrics[QUALITY]),
                kept=_kept(setting, start.utility),
                chosen_by=None if None in by else by,
            )
        )
    on = ", ".join(map(str, selection["chosen_on_seeds"]))
    seeds = tuple(selection["reported_on_seeds"])
    return Table(
        name="declared",
        title=f"Best settings by the sweep's own rule, chosen on seeds {on}",
        rule=selection["rule"],
        seeds=seeds,
        lines=_ordered(lines, report.rows),
    )


def _kept(setting: Setting | None, start: float | None) -> float | None:
    utility = None if setting is None else setting.metrics[UTILITY]
    return utility / start if utility is not None and start else None


def _ordered(lines: Sequence[Line], rows: Sequence[Row]) -> tuple[Line, ...]:
    """By model and fraction as in the table of all numbers, highest Forget Quality first."""
    order: dict[tuple[str, float], int] = {}
    for row in rows:
        order.setdefault((row.model, row.forget_fraction), len(order))
    return tuple(
        sorted(
            lines,
            key=lambda one: (
                order.get((one.model, one.forget_fraction), len(order)),
                -_quality(one),
                one.family,
            ),
        )
    )


def _quality(line: Line) -> float:
    value = None if line.setting is None else line.setting.metrics[QUALITY]
    return float("-inf") if value is None else value


def caveats(table: Table, sure: Claims) -> tuple[str, ...]:
    """What a reader of the copied table has to know, a sentence each."""
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
    for one in sure.panels:
        place = f"{one.model}, forget {100 * one.forget_fraction:g} %: "
        prefix = place if len(sure.panels) > 1 else ""
        found = [] if one.rivals is None else [*one.rivals.sentences]
        sentences += [prefix + each.replace("`", "") for each in (*found, *one.unequal_sentences)]
    return tuple(sentences)


def exported(table: Table, caveats: Sequence[str] = ()) -> dict[str, Any]:
    """What the page copies as CSV, Markdown and LaTeX: values to the last digit, and the rule."""
    return {
        "title": table.title,
        "rule": table.rule,
        "seeds": list(table.seeds),
        "caveats": list(caveats),
        "lines": [_exported(line) for line in table.lines],
    }


def _exported(line: Line) -> dict[str, Any]:
    found = line.setting
    told: dict[str, Any] = {
        "method": line.method,
        "model": line.model,
        "fraction": line.forget_fraction,
        "tried": line.tried,
        "note": line.why_not,
        "unmoved": line.unmoved,
    }
    if found is None:
        return told
    interval = found.interval(QUALITY) or found.interval(UTILITY)
    return told | {
        "interval": None if interval is None else interval.name,
        "range": interval is not None and interval.is_range,
        "rate": found.learning_rate,
        "epoch": found.epoch,
        "seeds": [row.seed for row in found.rows],
        "quality": _numbers(found, QUALITY),
        "utility": _numbers(found, UTILITY),
        "kept": line.kept,
        "statistic": found.metrics["ks_statistic"],
        "chosen": line.chosen_by,
    }


def _numbers(setting: Setting, metric: str) -> dict[str, Any]:
    """Mean; with several seeds its interval and the seeds' standard deviation."""
    interval = setting.interval(metric)
    mean = {"mean": setting.metrics[metric]}
    if interval is None:
        return mean
    return mean | {"low": interval.low, "high": interval.high, "spread": interval.spread}
