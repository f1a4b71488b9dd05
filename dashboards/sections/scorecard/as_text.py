"""The scorecards of a sweep as text: LaTeX, Markdown or CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from unlearnbench.analysis.results import Results
from unlearnbench.analysis.scorecard import LASTING, Score
from unlearnbench.report.best_table import TableFormat

from ...formatting import interval_names, interval_text
from ...report_section import PageContext
from ..best_settings import settings_table
from . import ScorePanel, ScoreTables, latex_tables, score_tables


def scorecard(report: Results, kind: TableFormat = "markdown") -> str:
    """Write the scores of each method's best setting.

    Args:
        report: Results of a sweep.
        kind: Format. LaTeX and Markdown have a table for each model and split, with the start and
            the retain model. CSV has one table of the methods, with all digits.

    Returns:
        An empty text if no method has a score.
    """
    context = PageContext.of(report)
    tables = score_tables(context)
    if kind == "latex":
        return "\n".join(latex_tables(context))
    if kind == "csv":
        return _csv(tables, report) if tables.drawn else ""
    return "\n".join(_markdown(context, tables, panel) for panel in tables.drawn)


def _titles(tables: ScoreTables, *, attacked: bool) -> list[str]:
    labels = [question.columns()[0].label for question in tables.questions]
    return [*labels, *[LASTING] * attacked]


def _markdown(context: PageContext, tables: ScoreTables, panel: ScorePanel) -> str:
    titles = _titles(tables, attacked=panel.attacked)
    lines = [
        ["Method", *titles],
        ["---", *["---:"] * len(titles)],
        *([line.setting.method, *_cells(line.numbers, len(titles))] for line in panel.lines),
    ]
    for name, numbers in panel.references.items():
        texts = ["" if number is None else f"{number:.2f}" for number in numbers]
        lines.append([name, *texts, *[""] * (len(titles) - len(texts))])
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    scores = [score for line in panel.lines for score in line.numbers]
    notes = [
        f"Scores of each method's best setting, {panel.place}: 0 to 1, higher is better.",
        f"Setting: {settings_table(context).rule}.",
        *(f"Brackets: {name}." for name in interval_names(score.interval for score in scores)),
    ]
    if any(score.warnings for score in scores):
        notes.append("⚠: beyond the retain model, repetitive or bypassed, so no success.")
    return "\n".join([*table, "", " ".join(notes), ""])


def _cells(scores: Sequence[Score], count: int) -> list[str]:
    """Write the scores of a method; empty cells for a method without any."""
    cells: list[str] = []
    for score in scores:
        text = "" if score.mean is None else f"{score.mean:.2f}"
        if score.mean is not None and score.interval is not None:
            text += f" {interval_text(score.interval)}"
        cells.append(text + " ⚠" * bool(text and score.warnings))
    return [*cells, *[""] * (count - len(cells))]


def _csv(tables: ScoreTables, report: Results) -> str:
    """Write every score in full, with intervals in columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titles = _titles(tables, attacked=any(panel.attacked for panel in tables.drawn))
    first = ("method", "model", "forget_fraction", "learning_rate", report.unit.value, "seeds")
    numbers = [f"{title.lower()}{end}" for title in titles for end in ("", "_low", "_high")]
    writer.writerow([*first, *numbers])
    for panel in tables.drawn:
        for line in panel.lines:
            setting = line.setting.setting
            cells: list[Any] = [line.setting.method, panel.model, panel.forget_fraction]
            if setting is not None:
                seeds = " ".join(str(row.seed) for row in setting.rows)
                cells += [setting.learning_rate, setting.epoch, seeds]
            for score in line.numbers:
                ends: tuple[float | None, float | None] = (None, None)
                if score.mean is not None and score.interval is not None:
                    ends = (score.interval.low, score.interval.high)
                cells += [score.mean, *ends]
            writer.writerow([*cells, *[""] * (len(first) + len(numbers) - len(cells))])
    return text.getvalue()
