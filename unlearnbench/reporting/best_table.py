"""The best setting of each method as a table for a paper: LaTeX, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Best,
    Setting,
    best_first,
    best_per_method,
    headline_of_rows,
    panel_label,
    panel_order,
)
from unlearnbench.api.benchmark import Headline, HeadlineMetric, split_percent
from unlearnbench.errors import RecordError
from unlearnbench.reporting.latex import tex
from unlearnbench.results.outcomes import RunOutcome
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

TableFormat = Literal["latex", "markdown", "csv"]


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[Best], str]
    is_number: bool = True


def best_table(
    rows: Sequence[TableRow],
    kind: TableFormat = "markdown",
    without_result: Iterable[RunOutcome] = (),
) -> str:
    """Write the best setting of each method, best first, with intervals over seeds.

    rows            of a sweep, as `build_report(folder).rows` or a part of them
    without_result  runs that failed or collapsed, to be named where none was evaluated

    Raises: RecordError where no run was evaluated.
    """
    headline = headline_of_rows(rows)
    found = sorted(best_per_method(rows), key=_order)
    if not found:
        reasons = "; ".join(map(str, without_result)) or "none has ended yet"
        raise RecordError(f"no run was evaluated, so there is no best setting to print: {reasons}")
    writers = {"latex": _latex, "markdown": _markdown, "csv": _csv}
    return writers[kind](found, headline)


def _order(one: Best) -> tuple[Any, ...]:
    return panel_order((one.model, one.forget_fraction)), best_first(one.setting, one.method)


def _columns(found: Sequence[Best], headline: Headline) -> list[_Column]:
    """The columns of LaTeX and Markdown; model and split where there are several."""

    def of(metric: HeadlineMetric) -> Callable[[Best], str]:
        return lambda one: "" if one.setting is None else _mean(one.setting, metric)

    def rate(one: Best) -> str:
        value = None if one.setting is None else one.setting.learning_rate
        return "" if value is None else f"{value:g}"

    columns = [_Column("Method", lambda one: one.method, is_number=False)]
    if len({one.model for one in found}) > 1:
        columns.append(_Column("Model", lambda one: one.model, is_number=False))
    if len({one.forget_fraction for one in found}) > 1:
        columns.append(_Column("Forget", lambda one: split_percent(one.forget_fraction)))
    return [
        *columns,
        _Column(headline.forgotten.plain_label, of(headline.forgotten)),
        _Column(headline.kept.plain_label, of(headline.kept)),
        _Column("Learning rate", rate),
        _Column("Epoch", lambda one: "" if one.setting is None else str(one.setting.epoch)),
        _Column("Seeds", lambda one: "" if one.setting is None else str(len(one.setting.rows))),
    ]


def _mean(setting: Setting, metric: HeadlineMetric) -> str:
    """A mean and, in brackets, its interval; of two seeds their range, named so."""
    mean, digits = setting.metrics.get(metric.column), metric.digits
    if mean is None:
        return ""
    interval = setting.interval(metric.column)
    if interval is None:
        return f"{mean:.{digits}f}"
    name = "min-max " if interval.is_range else ""
    return f"{mean:.{digits}f} {name}[{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _sentences(found: Sequence[Best], headline: Headline) -> list[str]:
    """The table's caption, and notes that stand behind it."""
    kept, forgotten = headline.kept, headline.forgotten
    rule = (
        f"Best setting of each method: {forgotten.best_word} {forgotten.plain_label} of those that "
        f"keep at least {UTILITY_SHARE:.0%} of the start model's {kept.plain_label}."
    )
    panels = list(dict.fromkeys((one.model, one.forget_fraction) for one in found))
    sentences = [rule, *([f"{panel_label(*panels[0])}."] if len(panels) == 1 else [])]
    settings = [one.setting for one in found if one.setting is not None]
    intervals = (s.interval(forgotten.column) or s.interval(kept.column) for s in settings)
    names = dict.fromkeys(one.name for one in intervals if one is not None)
    sentences += [f"Brackets: {name}." for name in names]
    if any(len(one.rows) < ENOUGH_SEEDS for one in settings):
        sentences.append("Fewer than three seeds: small differences may be chance.")
    if len(settings) < len(found):
        sentences.append(f"Empty: no setting keeps {UTILITY_SHARE:.0%}.")
    return sentences


def _latex(found: Sequence[Best], headline: Headline) -> str:
    columns = _columns(found, headline)
    caption, *notes = _sentences(found, headline)
    lines = [
        *(f"% {tex(note)}" for note in notes),
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{tex(caption)}}}",
        f"\\begin{{tabular}}{{{''.join('r' if one.is_number else 'l' for one in columns)}}}",
        "\\toprule",
        " & ".join(tex(one.title) for one in columns) + " \\\\",
        "\\midrule",
        *(" & ".join(_tex_cell(one, line) for one in columns) + " \\\\" for line in found),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_cell(column: _Column, line: Best) -> str:
    text = column.cell(line)
    if not column.is_number:
        return tex(text)
    # A hyphen in mathematics is a minus sign.
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", lambda found: f"${found[0]}$", tex(text))


def _markdown(found: Sequence[Best], headline: Headline) -> str:
    columns = _columns(found, headline)

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [line(one.title for one in columns)]
    lines.append(line("---:" if one.is_number else "---" for one in columns))
    lines += [line(one.cell(best) for one in columns) for best in found]
    return "\n".join([*lines, "", " ".join(_sentences(found, headline)), ""])


def _csv(found: Sequence[Best], headline: Headline) -> str:
    """Every number in full, with intervals in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = [headline.forgotten.column, headline.kept.column]
    titles = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    first = ("method", "model", "forget_fraction", "learning_rate", "epoch", "seeds")
    writer.writerow([*first, *titles])
    for one in found:
        place = [one.method, one.model, one.forget_fraction]
        if (setting := one.setting) is None:
            writer.writerow([*place, *[""] * (len(titles) + 3)])
            continue
        numbers: list[float | None] = []
        for name in metrics:
            interval = setting.interval(name)
            ends = (None, None) if interval is None else (interval.low, interval.high)
            numbers += [setting.metrics.get(name), *ends]
        seeds = " ".join(str(row.seed) for row in setting.rows)
        writer.writerow([*place, setting.learning_rate, setting.epoch, seeds, *numbers])
    return text.getvalue()
