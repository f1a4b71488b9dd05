"""What `evaluate` and `score` print: all numbers of a model, and the verdict on it.

Numbers of the retain and of the start model stand beside those of the model, if they are given.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unlearnbench.analysis.over_questions import OverQuestions
from unlearnbench.base.console import Console
from unlearnbench.results.single import ModelRole

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results
    from unlearnbench.api.metric import Summary
    from unlearnbench.api.observations import Evaluation, Statistics
    from unlearnbench.evaluation.harness_tasks import TaskScores
    from unlearnbench.results.table import TableRow

_LOPSIDED = 0.2
"""Share of half an interval's width by which a value may be off its middle, to be shown with ±."""


class JudgedModel:
    """A model with its numbers, their intervals over questions, and the models beside it."""

    def __init__(self, results: Results) -> None:
        row_of_kind = {row.kind: row for row in results.rows}
        self.row: TableRow = row_of_kind[ModelRole.MODEL.kind]
        self.beside: dict[ModelRole, TableRow] = {}
        """The rows of the retain and of the start model, if they are given."""
        for role in (ModelRole.RETAIN, ModelRole.START):
            if role.kind in row_of_kind:
                self.beside[role] = row_of_kind[role.kind]

        evaluation = results.observed(self.row)
        if evaluation is None:
            raise AssertionError("a model that is judged has its evaluation in memory")
        self.evaluation: Evaluation = evaluation
        self.over_questions = OverQuestions(
            results.schema,
            results.observed,
            retain=self.beside.get(ModelRole.RETAIN),
            start=self.beside.get(ModelRole.START),
        )
        self.intervals: Mapping[str, tuple[float, float]] = self.over_questions.intervals(self.row)
        """Ends by column; columns without an interval are left out."""

    def cells(self, column: str) -> list[float | None]:
        """Return the numbers of a column for a table: the model's, then those beside it."""
        rows = (self.row, *self.beside.values())
        return [rounded(row.metrics.get(column)) for row in rows]

    @property
    def headings_beside(self) -> list[str]:
        """The headings of the columns for the models beside it."""
        return [f"{role} model's" for role in self.beside]


def print_verdict(results: Results, tasks: TaskScores, *, as_json: bool) -> None:
    """Print all numbers of a model and the verdict on it.

    Args:
        results: Of the model and of the models beside it.
        tasks: Scores on tasks of lm-evaluation-harness.
        as_json: Whether to print a document instead of tables and sentences.
    """
    from unlearnbench.analysis.model_text import model_sentences

    console = Console()
    judged = JudgedModel(results)
    sentences = model_sentences(
        judged.row, judged.over_questions, judged.intervals, results.profile
    )
    _print_warnings(results, judged, console)
    if as_json:
        console.print_json(_document(judged, tasks, sentences))
    else:
        console.paragraph(rules_line(judged.evaluation))
        console.print()
        _print_metrics(judged, console)
        console.print()
        for sentence in sentences:
            console.paragraph(sentence)
        _print_tasks(tasks, console)
    if judged.evaluation.statistics:
        _print_statistics(judged.evaluation.statistics, console)


def _print_warnings(results: Results, judged: JudgedModel, console: Console) -> None:
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.evaluation.privacy_control import failed_control

    warnings = [*drain(), *results.table.notes]
    start = judged.beside.get(ModelRole.START)
    if start is not None:
        warnings.append(failed_control(start.metrics))
    for line in filter(None, warnings):
        console.note(f"warning: {line}")


def _document(judged: JudgedModel, tasks: TaskScores, sentences: Any) -> dict[str, Any]:
    """Return the numbers and the verdict as JSON."""
    evaluation = judged.evaluation
    document: dict[str, Any] = {
        "profile": evaluation.profile,
        "precision": evaluation.precision,
        "questions": question_counts(evaluation),
        **numbers_of(judged.row),
    }
    if judged.beside:
        document["models"] = {role: numbers_of(row) for role, row in judged.beside.items()}
    if tasks:
        document["tasks"] = {
            task: {metric: score._asdict() for metric, score in scores.items()}
            for task, scores in tasks.items()
        }
    document["intervals"] = judged.intervals
    document["verdict"] = sentences
    return document


def question_counts(evaluation: Evaluation) -> dict[str, int]:
    """Return the number of questions by set."""
    return {name: len(questions.answer_loss) for name, questions in evaluation.sets.items()}


def numbers_of(row: TableRow) -> dict[str, float | None]:
    """Return the numbers of a row by column, in the order of a table; None if undefined.

    Columns that only an attack makes are left out if they have no number.
    """
    plan = row.schema.plan
    numbers = {column.name: row.metrics.get(column.name) for column in plan.columns}
    for column in plan.under_attack:
        value = row.metrics.get(column.name)
        if value is not None:
            numbers[column.name] = value
    return numbers


def rules_line(evaluation: Evaluation) -> str:
    """Return the profile, precision and sizes of an evaluation as a line."""
    counts = question_counts(evaluation)
    sizes = ", ".join(f"{count} {_spaced(name)}" for name, count in counts.items())
    precision = f" in {evaluation.precision}" if evaluation.precision else ""
    base, _, changes = evaluation.profile.partition("+")
    caveat = f" (not comparable with numbers by {base})" if changes else ""
    return f"rules: profile {evaluation.profile}{caveat}{precision}; {sizes} questions"


def _print_metrics(judged: JudgedModel, console: Console) -> None:
    """Print the scores, then the other numbers of the whole model, then the metrics by set."""
    plan = judged.row.schema.plan
    labels = {column.name: _without_subscripts(column.label) for column in plan.columns}
    score_of_column = _scores_by_column(judged)
    _print_scores(judged, score_of_column, labels, console)

    other_columns = [
        column.name
        for column in plan.columns
        if not column.set
        and column.name not in score_of_column
        and judged.row.metrics.get(column.name) is not None
    ]
    if other_columns:
        lines = [(labels[name], *judged.cells(name)) for name in other_columns]
        console.table(("metric", "value", *judged.headings_beside), lines)
        console.print()

    _print_metrics_by_set(judged, console)
    missing = [label for name, label in labels.items() if judged.row.metrics.get(name) is None]
    if missing:
        console.note(f"not measured: {'; '.join(missing)}")


def _scores_by_column(judged: JudgedModel) -> dict[str, Summary]:
    """Return the summaries that answer a question, by the column of their score.

    Scores relative to the retain model say what is forgotten, and come first. What is kept follows.
    """
    summaries = judged.row.schema.plan.summaries.values()
    ordered = sorted(summaries, key=lambda summary: "retain" not in summary.relative_to)
    return {summary.columns()[0].name: summary for summary in ordered if summary.question}


def _print_scores(
    judged: JudgedModel,
    score_of_column: Mapping[str, Summary],
    labels: Mapping[str, str],
    console: Console,
) -> None:
    """Print the scores with their questions, unless none is measured.

    A table of dashes would say nothing, and `_print_metrics` names what is not measured.
    """
    lines: list[tuple[Any, ...]] = []
    is_measured = False
    for name, summary in score_of_column.items():
        cells = judged.cells(name)
        is_measured = is_measured or any(cell is not None for cell in cells)
        relative_to = " and ".join(sorted(summary.relative_to))
        lines.append((labels[name], *cells, summary.question, relative_to))
    if not is_measured:
        return
    schema = judged.row.schema
    # The best score is that of a retain model. Without one, it is not known which score is best.
    lacks_retain = schema.could_have_retain and not schema.has_retain
    question = "question" if lacks_retain else "question (1 is best)"
    headings = ("score", "value", *judged.headings_beside, question, "relative to models")
    console.table(headings, lines, flowing=headings[-2:])
    console.print()


def _print_metrics_by_set(judged: JudgedModel, console: Console) -> None:
    """Print the metrics of each set with their intervals, and below those of the other models."""
    schema = judged.row.schema
    sets_with_metrics = {column.set for column in schema.plan.columns}
    sets = [
        name
        for name in schema.roles
        if name in judged.evaluation.sets and name in sets_with_metrics
    ]
    # Measures with the same name are one metric on different sets, and share a line.
    label_of_metric = {measure.name: measure.metric.label for measure in schema.plan.measures}
    lines: list[tuple[str, ...]] = []
    for metric, label in label_of_metric.items():
        columns = [f"{metric}_{on_set}" for on_set in sets]
        cells = [_with_half_width(judged, column) for column in columns]
        if not any(cells):
            continue
        lines.append((label, "model", *cells) if judged.beside else (label, *cells))
        for role, row in judged.beside.items():
            values = [row.metrics.get(column) for column in columns]
            texts = ["" if value is None else f"{value:.3f}" for value in values]
            lines.append(("", f"{role} model", *texts))

    counts = question_counts(judged.evaluation)
    headings = [f"{_spaced(name)} (n={counts[name]})" for name in sets]
    keys = ["metric, ± 95 % of questions"]
    if judged.beside:
        keys.append("of")
    console.table((*keys, *headings), lines, keys=len(keys))


def _with_half_width(judged: JudgedModel, column: str) -> str:
    """Return a table's cell: `0.842 ±0.031`, or `1.000 [0.158, 1.000]` if the ends are not alike.

    It is the number alone if there is no interval, and empty if there is no number.
    """
    value = judged.row.metrics.get(column)
    interval = judged.intervals.get(column)
    if value is None:
        return ""
    if interval is None:
        return f"{value:.4g}"
    low, high = interval
    half = (high - low) / 2
    is_lopsided = abs(value - low - half) > _LOPSIDED * half
    return f"{value:.3f} {_ends_text(interval)}" if is_lopsided else f"{value:.3f} ±{half:.3f}"


def _ends_text(interval: tuple[float, float] | None) -> str | None:
    """Return a table's cell: `[0.158, 1.000]`; None without an interval."""
    if interval is None:
        return None
    low, high = interval
    return f"[{low:.3f}, {high:.3f}]"


def _print_tasks(tasks: TaskScores, console: Console) -> None:
    rows = [
        (task, metric, rounded(score.value), score.rows, _ends_text(score.interval))
        for task, scores in tasks.items()
        for metric, score in scores.items()
    ]
    if rows:
        columns = ("task of lm-evaluation-harness", "metric", "value", "rows", "95 % interval")
        console.print()
        console.table(columns, rows)


def _print_statistics(statistics: Statistics, console: Console) -> None:
    """Print which answers may differ elsewhere, and whether outputs were not finite."""
    if statistics.ties:
        console.note(
            f"{len(statistics.ties)} answers hung on a tie between two tokens and may differ "
            f"elsewhere, such as that to {statistics.ties[0]!r}"
        )
    if statistics.cut:
        console.note(f"{statistics.cut} true answers are cut at the profile's max_length")
    for remark in statistics.remarks:
        console.note(remark)
    if statistics.not_finite is not None:
        console.note(
            f"the model's outputs are not finite, first at {statistics.not_finite!r}: what depends "
            "on them is undefined"
        )


def rounded(value: float | None) -> float | None:
    """Return a value to four significant digits, for a table."""
    return None if value is None else float(f"{value:.4g}")


def _without_subscripts(label: str) -> str:
    """Return a label in characters that every terminal has."""
    return unicodedata.normalize("NFKC", label)


def _spaced(name: str) -> str:
    return name.replace("_", " ")
