"""The best setting of each method as a table for a paper: LaTeX, Markdown or CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unlearnbench.analysis.best_settings import Best, Panel, best_per_method
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import Setting
from unlearnbench.analysis.wording import best_rule
from unlearnbench.api.benchmark import Headline, HeadlineMetric, split_percent
from unlearnbench.base.errors import RecordError
from unlearnbench.base.number_text import float_text
from unlearnbench.config.unit import Unit
from unlearnbench.results.outcomes import RunOutcome
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{item: f"\\{item}" for item in "{}$&#%_"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u2026": r"\ldots{}",
    "\u2264": r"$\le$",
    "\u0394": r"$\Delta$",
}
_LOG = re.compile("log(?:\u2081\u2080|10) ")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
"""A number in a cell. It is set as mathematics, in which a hyphen is a minus sign."""


def tex(text: str) -> str:
    """Escape what LaTeX would read as a command; `log₁₀` is set as a function."""
    parts = _LOG.split(text)
    plain = ("".join(_ESCAPES.get(item, item) for item in part) for part in parts)
    return r"$\log_{10}$ ".join(plain)


Key = Callable[[Setting], float | None]


@dataclass(frozen=True)
class Column:
    """A column of a table, here or on the page."""

    title: str
    text: Callable[[Any], str]
    """Function that formats a line."""
    key: Callable[[Any], float | None] | None = None
    """Number to sort by; without it, lines are sorted by the text."""
    align: str = "num"
    """CSS classes of the page's cells."""


TableFormat = Literal["latex", "markdown", "csv"]


def best_table(
    results: Results, kind: TableFormat = "markdown", without_result: Iterable[RunOutcome] = ()
) -> str:
    """Write the best setting of each method, best first, with intervals over seeds.

    Args:
        results: Of a sweep, or of the lines of a leaderboard.
        kind: Format of the table.
        without_result: Runs that failed or collapsed, to be named if none was evaluated.

    Raises:
        RecordError: If no run was evaluated.
    """
    best = best_per_method(results.panels)
    if not best:
        reasons = "; ".join(map(str, without_result)) or "none has ended yet"
        raise RecordError(f"no run was evaluated, so there is no best setting to print: {reasons}")
    references = reference_lines(results.panels, best)
    return write_table(best, results.headline, shown_rule(results), kind, references, results.unit)


def shown_rule(results: Results) -> str:
    """Return the rule by which the best settings of some results are found."""
    if any(panel.choices for panel in results.panels):
        return choice_rule(results)
    return best_rule(results.headline)


def choice_rule(results: Results) -> str:
    """Return the rule of a sweep, or of the sweeps on a board, that choose on some seeds."""
    seeds = sorted({seed for choice in results.choices for seed in choice.chosen_on})
    on = f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"
    if results.selection is not None:
        reporting = ", ".join(map(str, results.selection["reported_on_seeds"]))
        return f"{results.selection['rule']}; numbers are means over seeds {reporting}"
    if results.choice_plan is not None:
        return f"the sweep chooses on {on} when its trials have ended"
    chosen = f"settings that sweeps have chosen on {on}, with numbers of the other seeds"
    if all(best.choice is not None for best in best_per_method(results.panels)):
        return chosen
    return f"{chosen}; of other sweeps, {best_rule(results.headline)}"


def reference_lines(panels: Iterable[Panel], best: Iterable[Best]) -> tuple[Best, ...]:
    """Return the retain and the start model, if evaluated, as lines of a table.

    Args:
        panels: All panels.
        best: The table's other lines. Only models of their panels are in it.
    """
    shown = {line.panel for line in best}
    lines: list[Best] = []
    for panel in panels:
        if panel.panel not in shown:
            continue
        for name, kind in (("retain model", "retain"), ("start model", "fine-tuned")):
            row = panel.row(kind)
            if row is not None:
                setting = Setting(*panel.panel, name, kind, None, row.epoch, (row,), row.metrics)
                lines.append(Best(*panel.panel, name, kind, setting))
    return tuple(lines)


def write_table(
    best: Sequence[Best],
    headline: Headline,
    rule: str,
    kind: TableFormat,
    references: Sequence[Best] = (),
    unit: Unit = Unit.EPOCH,
) -> str:
    """Write settings that were chosen by a rule, which the caption states.

    Args:
        best: The best setting of each method.
        headline: The two numbers that methods are ranked by.
        rule: How the settings were chosen.
        kind: Format of the table.
        references: Lines of the retain and start models, which stand below. CSV, which programs
            read, has only methods: `results.csv` has the other models.
        unit: What the moments of evaluations are counted in.
    """
    if kind == "csv":
        return _csv(best, headline, unit)
    return {"latex": _latex, "markdown": _markdown}[kind](best, headline, rule, references, unit)


def columns(lines: Sequence[Best], headline: Headline, unit: Unit = Unit.EPOCH) -> list[Column]:
    """Return the columns of the page, of LaTeX and of Markdown.

    A method without a best setting has empty cells.

    Args:
        lines: Lines of the table. Model and split have a column if they differ between lines.
        headline: The two metrics that methods are ranked by.
        unit: What the moments of evaluations are counted in.
    """
    shown = [Column("Method", lambda line: line.method, align="")]
    if len({line.model for line in lines}) > 1:
        shown.append(Column("Model", lambda line: line.model, align=""))
    if len({line.forget_fraction for line in lines}) > 1:
        shown.append(Column("Forget", lambda line: split_percent(line.forget_fraction)))
    return [
        *shown,
        _metric_column(headline.forgotten),
        _metric_column(headline.kept),
        _setting_column("Learning rate", _rate_text, lambda setting: setting.learning_rate),
        _setting_column(unit.heading, _epoch_text, lambda setting: setting.epoch),
        _setting_column("Seeds", _seed_count_text, lambda setting: len(setting.rows)),
    ]


def _setting_column(title: str, text: Callable[[Setting], str], key: Key) -> Column:
    """Make a column of a setting's value, which is empty for a method without a setting."""
    return Column(
        title,
        lambda line: "" if line.setting is None else text(line.setting),
        lambda line: None if line.setting is None else key(line.setting),
    )


def _metric_column(metric: HeadlineMetric) -> Column:
    return _setting_column(
        metric.plain_label,
        lambda setting: _mean(setting, metric),
        lambda setting: setting.metrics.get(metric.column),
    )


def _rate_text(setting: Setting) -> str:
    return "" if setting.learning_rate is None else float_text(setting.learning_rate)


def _epoch_text(setting: Setting) -> str:
    return "" if _is_reference(setting) else str(setting.epoch)


def _seed_count_text(setting: Setting) -> str:
    return "" if _is_reference(setting) else str(len(setting.rows))


def _is_reference(setting: Setting) -> bool:
    """Whether this is the retain or the start model, which no run has made."""
    return bool(setting.rows) and setting.rows[0].kind != "run"


def _mean(setting: Setting, metric: HeadlineMetric) -> str:
    """Write a mean and its interval: `0.31 [0.28, 0.34]`, or `0.31 min-max [0.30, 0.32]`.

    Two seeds have their range in place of an interval.
    """
    mean = setting.metrics.get(metric.column)
    if mean is None:
        return ""
    interval = setting.interval(metric.column)
    if interval is None:
        return metric.text(mean)
    name = "min-max " if interval.is_range else ""
    return f"{metric.text(mean)} {name}[{metric.text(interval.low)}, {metric.text(interval.high)}]"


def _sentences(best: Sequence[Best], headline: Headline, rule: str) -> list[str]:
    """Write the table's caption, and after it the notes below the table."""
    sentences = [f"Best setting of each method: {rule}."]
    if len({line.panel for line in best}) == 1:
        # The table has no columns for model and split, because all lines share them.
        sentences.append(f"{best[0].place}.")

    settings = [line.setting for line in best if line.setting is not None]
    interval_names: dict[str, None] = {}  # a set that keeps the order
    for setting in settings:
        for column in (headline.forgotten.column, headline.kept.column):
            interval = setting.interval(column)
            if interval is not None:
                interval_names[interval.name] = None
    sentences += [f"Brackets: {name}." for name in interval_names]
    if any(len(setting.rows) < ENOUGH_SEEDS for setting in settings):
        sentences.append("Fewer than three seeds: small differences may be chance.")

    explained = [line for line in best if line.why_not and (line.choice or line.lost)]
    sentences += sorted({f"{line.method}: {line.why_not}." for line in explained})
    if any(line.setting is None and line not in explained for line in best):
        sentences.append("Empty: no setting by this rule, or no valid start model.")
    return sentences


def latex(
    caption: str, notes: Iterable[str], lines: Sequence[Sequence[str]], texts: int, rule: int = -1
) -> str:
    """Write a LaTeX table.

    Args:
        caption: Plain text.
        notes: Plain texts, which become comments before the table.
        lines: Cells in LaTeX. The first line has the titles.
        texts: Number of columns at the left that are aligned left. All others are aligned right.
        rule: Index of a line that a rule stands before, besides the rule below the titles; -1 for
            no such line.
    """
    rows = [" & ".join(line) + r" \\" for line in lines]
    if rule > 0:
        rows.insert(rule, r"\midrule")
    head, *body = rows
    parts = [
        *(f"% {tex(note)}" for note in notes),
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{tex(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * texts}{'r' * (len(lines[0]) - texts)}}}",
        *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(parts) + "\n"


def _latex(
    best: Sequence[Best], headline: Headline, rule: str, references: Sequence[Best], unit: Unit
) -> str:
    shown = columns(best, headline, unit)
    texts = sum(column.align == "" for column in shown)

    def cells_of(line: Best) -> list[str]:
        cells = [tex(column.text(line)) for column in shown]
        numbers = [_NUMBER.sub(r"$\g<0>$", cell) for cell in cells[texts:]]
        return [*cells[:texts], *numbers]

    caption, *notes = _sentences(best, headline, rule)
    titles = [tex(column.title) for column in shown]
    lines = [titles, *map(cells_of, best), *map(cells_of, references)]
    return latex(caption, notes, lines, texts, rule=1 + len(best) if references else -1)


def _markdown(
    best: Sequence[Best], headline: Headline, rule: str, references: Sequence[Best], unit: Unit
) -> str:
    shown = columns(best, headline, unit)
    table = [
        _markdown_line([column.title for column in shown]),
        _markdown_line(["---:" if column.align else "---" for column in shown]),
    ]
    for line in (*best, *references):
        table.append(_markdown_line([column.text(line) for column in shown]))
    return "\n".join([*table, "", " ".join(_sentences(best, headline, rule)), ""])


def _markdown_line(cells: Iterable[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return "| " + " | ".join(escaped) + " |"


def _csv(best: Sequence[Best], headline: Headline, unit: Unit) -> str:
    """Every number in full, with intervals in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = [headline.forgotten.column, headline.kept.column]
    titles = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    first = ("method", "model", "forget_fraction", "learning_rate", unit.value, "seeds")
    writer.writerow([*first, *titles])
    for item in best:
        line: list[Any] = [item.method, item.model, item.forget_fraction]
        if (setting := item.setting) is not None:
            seeds = " ".join(str(row.seed) for row in setting.rows)
            line += [setting.learning_rate, setting.epoch, seeds]
            for name in metrics:
                interval = setting.interval(name)
                ends = (None, None) if interval is None else (interval.low, interval.high)
                line += [setting.metrics.get(name), *ends]
        writer.writerow([*line, *[""] * (len(first) + len(titles) - len(line))])
    return text.getvalue()
