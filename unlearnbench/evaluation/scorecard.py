"""The metrics of one model in the order that a reader asks for them, and why some are missing."""

import unicodedata
from collections.abc import Mapping, Set
from dataclasses import dataclass

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import UNDER_ATTACK, Compared, Role, Summary, Values
from unlearnbench.config.metric_plan import MetricPlan, columns_of

UNDEFINED = "what they read is missing here, or not a number"


@dataclass(frozen=True)
class ScoreOfQuestion:
    """The answer to one question of the scorecard."""

    label: str
    value: float | None
    question: str
    relative_to: tuple[Compared, ...]


@dataclass(frozen=True)
class Scorecard:
    """All metrics of one model, in groups."""

    scores: tuple[ScoreOfQuestion, ...]
    """Scores of what was to be forgotten, of privacy, of what is kept."""
    numbers: tuple[tuple[str, float], ...]
    """(label, value) of the other metrics of the whole evaluation."""
    sets: tuple[str, ...]
    """The evaluation sets that have metrics."""
    by_set: tuple[tuple[str, tuple[float | None, ...]], ...]
    """(label, a value for each of `sets`)."""
    attacks: tuple[tuple[str, tuple[float | None, ...]], ...]
    """(label, area under the curve, true positive rate at 1 % false positives, control's area)."""
    missing: tuple[tuple[str, tuple[str, ...]], ...]
    """(reason, labels) of what is not measured."""


def scorecard(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    values: Values,
    sets: Set[str],
    compared: Set[Compared],
    references: Set[Compared],
) -> Scorecard:
    """Group the metrics of a model.

    roles       of the evaluation sets of the benchmark
    values      by column, as `plan.values` gives them
    sets        the names of the model's
    compared    models whose evaluations were given beside it
    references  models that the benchmark has
    """
    # First what is relative to the retain model: what was to be forgotten; then what is kept.
    ordered = sorted(plan.summaries.values(), key=lambda item: "retain" not in item.relative_to)
    scores = tuple(
        ScoreOfQuestion(_plain(column.label), values.get(column.name), item.question, _order(item))
        for item in ordered
        if item.question
        for column in columns_of(item)[:1]
    )
    attacks: list[tuple[str, tuple[float | None, ...]]] = []
    numbers: list[tuple[str, float]] = []
    missing: dict[str, dict[str, None]] = {}
    for summary in plan.summaries.values():
        columns = columns_of(summary)
        result = [values.get(column.name) for column in columns]
        attack = summary.label if isinstance(summary, MembershipInference) else ""
        if columns and result[0] is None and not summary.reads & UNDER_ATTACK:
            title = f"{attack} attack" if attack else _plain(columns[0].label)
            missing.setdefault(_why_not(summary, compared, references), {})[title] = None
        elif attack:
            attacks.append((attack, (*result, *[None] * (3 - len(result)))))
        elif not summary.question:
            pairs = zip(columns, result, strict=True)
            numbers += [(_plain(column.label), v) for column, v in pairs if v is not None]
    by_set: dict[str, dict[str, float | None]] = {}
    labels: dict[str, str] = {}
    for measure in plan.measures:
        labels.setdefault(measure.name, measure.metric.label)
        for name in measure.sets:
            value = values.get(f"{measure.name}_{name}")
            by_set.setdefault(measure.name, {})[name] = value
            # What only an attack observes is no fault of a plain evaluation.
            if value is None and not measure.metric.reads & UNDER_ATTACK:
                reason = UNDEFINED if name in sets else f"no {name.replace('_', ' ')} set"
                missing.setdefault(reason, {})[measure.metric.label] = None
    names = tuple(n for n in roles if any(row.get(n) is not None for row in by_set.values()))
    rows = ((labels[key], tuple(map(row.get, names))) for key, row in by_set.items())
    return Scorecard(
        scores,
        tuple(numbers),
        names,
        tuple((label, row) for label, row in rows if any(v is not None for v in row)),
        tuple(attacks),
        tuple((reason, tuple(labels)) for reason, labels in missing.items()),
    )


def _why_not(summary: Summary, compared: Set[Compared], references: Set[Compared]) -> str:
    models = [name for name in _order(summary) if name not in compared]
    if not models:
        return UNDEFINED
    if lacking := [name for name in models if name not in references]:
        return f"not known without a {lacking[0]} model, which the benchmark lacks"
    options = ", ".join(f"--{name}" for name in models)
    return f"need the {' and the '.join(models)} model: {options}"


def _order(summary: Summary) -> tuple[Compared, ...]:
    models: tuple[Compared, ...] = ("start", "retain")
    return tuple(name for name in models if name in summary.relative_to)


def _plain(label: str) -> str:
    """The label without subscripts, for terminals."""
    return unicodedata.normalize("NFKC", label)
