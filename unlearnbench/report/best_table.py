"""The best setting of each method as a table for a paper: LaTeX, Markdown or CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from unlearnbench.analysis.best_settings import Best, Setting, best_per_method, headline_of_rows
from unlearnbench.analysis.text import best_rule, share_kept
from unlearnbench.api.benchmark import Headline, HeadlineMetric, split_percent
from unlearnbench.base.errors import RecordError
from unlearnbench.results.outcomes import RunOutcome
from unlearnbench.results.table import TableRow
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


def tex(text: str) -> str:
    """Escape what LaTeX would read as a command; `log₁₀` is set as a function."""
    parts = _LOG.split(text)
    plain = ("".join(_ESCAPES.get(item, item) for item in part) for part in parts)
    return r"$\log_{10}$ ".join(plain)


TableFormat = Literal["latex", "markdown", "csv"]


def best_table(
    rows: Sequence[TableRow],
    kind: TableFormat = "markdown",
    without_result: Iterable[RunOutcome] = (),
) -> str:
    """Write the best setting of each method, best first, with intervals over seeds.

    rows            of a sweep, as `Results.read(folder).rows` or a part of them
    without_result  runs that failed or collapsed, to be named where none was evaluated

    Raises: RecordError where no run was evaluated.
    """
    headline = headline_of_rows(rows)
    best = best_per_method(rows)
    if not best:
        reasons = "; ".join(map(str, without_result)) or "none has ended yet"
        raise RecordError(f"no run was evaluated, so there is no best setting to print: {reasons}")
    writers = {"latex": _latex, "markdown": _markdown, "csv": _csv}
    return writers[kind](best, headline)


def _cells(best: Sequence[Best], headline: Headline) -> tuple[list[str], list[list[str]]]:
    """Titles and lines of LaTeX and Markdown, with the columns of text first; model and split
    where there are several."""
    models = len({item.model for item in best}) > 1
    splits = len({item.forget_fraction for item in best}) > 1
    metrics = (headline.forgotten, headline.kept)
    titles = ["Method", *["Model"] * models, *["Forget"] * splits]
    titles += [*(item.plain_label for item in metrics), "Learning rate", "Epoch", "Seeds"]
    lines: list[list[str]] = []
    for item in best:
        line = [
            item.method,
            *[item.model] * models,
            *[split_percent(item.forget_fraction)] * splits,
        ]
        if (setting := item.setting) is None:
            line += [""] * 5
        else:
            rate = "" if setting.learning_rate is None else f"{setting.learning_rate:g}"
            line += [*(_mean(setting, metric) for metric in metrics), rate]
            line += [str(setting.epoch), str(len(setting.rows))]
        lines.append(line)
    return titles, lines


def _mean(setting: Setting, metric: HeadlineMetric) -> str:
    """A mean and, in brackets, its interval; of two seeds their range, named so."""
    mean, interval = setting.metrics.get(metric.column), setting.interval(metric.column)
    if mean is None or interval is None:
        return "" if mean is None else metric.text(mean)
    name = "min-max " if interval.is_range else ""
    return f"{metric.text(mean)} {name}[{metric.text(interval.low)}, {metric.text(interval.high)}]"


def _sentences(best: Sequence[Best], headline: Headline) -> list[str]:
    """The table's caption, and notes that stand behind it."""
    sentences = [f"Best setting of each method: {best_rule(headline)}."]
    sentences += (
        {f"{item.place}." for item in best} if len({item.panel for item in best}) == 1 else ()
    )
    settings = [item.setting for item in best if item.setting is not None]
    columns = headline.forgotten.column, headline.kept.column
    intervals = (setting.interval(column) for setting in settings for column in columns)
    names = dict.fromkeys(interval.name for interval in intervals if interval is not None)
    sentences += [f"Brackets: {name}." for name in names]
    if any(len(item.rows) < ENOUGH_SEEDS for item in settings):
        sentences.append("Fewer than three seeds: small differences may be chance.")
    if len(settings) < len(best):
        sentences.append(f"Empty: no setting keeps {share_kept(headline)}.")
    return sentences


def _latex(best: Sequence[Best], headline: Headline) -> str:
    titles, lines = _cells(best, headline)
    caption, *notes = _sentences(best, headline)
    texts = 1 + ("Model" in titles)

    def cells(line: Sequence[str]) -> str:
        # A hyphen in mathematics is a minus sign.
        numbers = (re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", r"$\g<0>$", tex(c)) for c in line[texts:])
        return " & ".join([*map(tex, line[:texts]), *numbers]) + " \\\\"

    parts = [
        *(f"% {tex(note)}" for note in notes),
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{tex(caption)}}}",
        f"\\begin{{tabular}}{{{'l' * texts}{'r' * (len(titles) - texts)}}}",
        "\\toprule",
        " & ".join(map(tex, titles)) + " \\\\",
        "\\midrule",
        *map(cells, lines),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(parts) + "\n"


def _markdown(best: Sequence[Best], headline: Headline) -> str:
    titles, lines = _cells(best, headline)
    texts = 1 + ("Model" in titles)
    rule = ["---"] * texts + ["---:"] * (len(titles) - texts)
    table = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in (titles, rule, *lines)
    ]
    return "\n".join([*table, "", " ".join(_sentences(best, headline)), ""])


def _csv(best: Sequence[Best], headline: Headline) -> str:
    """Every number in full, with intervals in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = [headline.forgotten.column, headline.kept.column]
    titles = [f"{name}{end}" for name in metrics for end in ("", "_low", "_high")]
    first = ("method", "model", "forget_fraction", "learning_rate", "epoch", "seeds")
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
