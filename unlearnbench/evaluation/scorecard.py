"""The metrics of one model in the order that a reader asks for them, and why some are missing."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Set
from dataclasses import dataclass

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    UNDER_ATTACK,
    Compared,
    Measure,
    MetricColumn,
    Role,
    Summary,
    Values,
)
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.config.metric_plan import MetricPlan, columns_of

_LACKS: Mapping[str, str] = {
    "tokens": "no values by token in it",
    "moments": "no moments of log-probabilities in it",
    "paraphrase": "no paraphrased answers in it",
    "perturbed": "no perturbed answers in it",
    "generated": "no generated answers in it",
    "rouge": "no ROUGE in it",
}
UNDEFINED = "undefined: a value that is read is missing, or not a number"


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
    """Of what was to be forgotten, of privacy, of what is kept."""
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
    sets: Mapping[str, SetEvaluation],
    compared: Set[Compared],
    references: Set[Compared] = frozenset({"start", "retain"}),
) -> Scorecard:
    """Group the metrics of a model.

    roles       of the evaluation sets of the benchmark
    values      by column, as `plan.values` gives them
    sets        the model's, of which reasons are read
    compared    models whose evaluations were given beside it
    references  models that the benchmark has
    """
    # First what is relative to the retain model: what was to be forgotten; then what is kept.
    ordered = sorted(plan.summaries.values(), key=lambda one: "retain" not in one.relative_to)
    scored = [(one, columns_of(one)) for one in ordered if one.question]
    summaries = [(one, columns_of(one)) for one in plan.summaries.values() if not one.question]
    scores = tuple(
        ScoreOfQuestion(
            _plain(columns[0].label), values.get(columns[0].name), one.question, _order(one)
        )
        for one, columns in scored
    )
    numbers = [
        (_plain(column.label), value)
        for one, columns in summaries
        if not isinstance(one, MembershipInference)
        for column in columns
        if (value := values.get(column.name)) is not None
    ]
    attacks = [
        (one.label, tuple(values.get(c.name) for c in columns) + (None,) * (3 - len(columns)))
        for one, columns in summaries
        if isinstance(one, MembershipInference) and values.get(columns[0].name) is not None
    ]
    names = tuple(n for n in roles if any(_value(values, m, n) is not None for m in plan.measures))
    labels: dict[str, str] = {}
    for measure in plan.measures:
        labels.setdefault(measure.name, measure.metric.label)
    rows = ((label, tuple(values.get(f"{m}_{n}") for n in names)) for m, label in labels.items())
    found: dict[str, dict[str, None]] = {}
    there: set[Role] = {roles[name] for name in sets if name in roles}
    for summary in plan.summaries.values():
        its = columns_of(summary)
        if not summary.reads & UNDER_ATTACK and its and values.get(its[0].name) is None:
            reason = _why_not(summary, there, compared, references, values)
            found.setdefault(reason, {})[_plain(_title(summary, its))] = None
    for measure in plan.measures:
        if measure.metric.reads & UNDER_ATTACK:  # no fault of a plain evaluation
            continue
        for name in measure.sets:
            if _value(values, measure, name) is None:
                reason = _lack(measure, sets.get(name), name)
                found.setdefault(reason, {})[measure.metric.label] = None
    return Scorecard(
        scores,
        tuple(numbers),
        names,
        tuple((label, row) for label, row in rows if any(v is not None for v in row)),
        tuple(attacks),
        tuple((reason, tuple(labels)) for reason, labels in found.items()),
    )


def _why_not(
    summary: Summary,
    there: Set[Role],
    compared: Set[Compared],
    references: Set[Compared],
    values: Values,
) -> str:
    if rows := sorted(summary.roles - there):
        return f"no {' and '.join(rows)} rows"
    if models := [name for name in _order(summary) if name not in compared | references]:
        return f"not known without a {' and a '.join(models)} model, which the benchmark lacks"
    if models := [name for name in _order(summary) if name not in compared]:
        options = ", ".join(f"--{name}" for name in models)
        return f"need the {' and the '.join(models)} model: {options}"
    if columns := [name for name in summary.parts() if values.get(name) is None]:
        return f"needs {', '.join(columns)}"
    return UNDEFINED


def _lack(measure: Measure, seen: SetEvaluation | None, name: str) -> str:
    if seen is None:
        return f"no {name.replace('_', ' ')} set"
    lacking = measure.lacks(seen)
    return _LACKS.get(lacking[0], f"no {lacking[0]} in it") if lacking else UNDEFINED


def _value(values: Values, measure: Measure, name: str) -> float | None:
    return values.get(f"{measure.name}_{name}")


def _title(summary: Summary, columns: tuple[MetricColumn, ...]) -> str:
    if isinstance(summary, MembershipInference):
        return f"{summary.label} attack"
    return columns[0].label


def _order(summary: Summary) -> tuple[Compared, ...]:
    models: tuple[Compared, ...] = ("start", "retain")
    return tuple(name for name in models if name in summary.relative_to)


def _plain(label: str) -> str:
    """The label without subscripts, for terminals."""
    return unicodedata.normalize("NFKC", label)
