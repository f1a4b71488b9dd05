"""Scores of one setting by question, the numbers behind them, and why a score is no success.

A score with its question, its parts and the models that it is relative to are declared by metrics
(`Summary.question`). All numbers are those of the records; tests of them read the evaluations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from unlearnbench.analysis.best_settings import mean_of
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import EvaluatedModel, MetricColumn, MetricInputs, Role, Summary
from unlearnbench.api.observations import Evaluation
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.table import TableRow
from unlearnbench.stats.mean_interval import FEW, difference_bounds, mean_interval
from unlearnbench.stats.roc import mean_auc_interval
from unlearnbench.stats.t_interval import Interval, is_above, t_interval

_Z = 1.96
"""Quantile of the normal distribution: beyond so many standard errors is beyond chance."""
Ends = tuple[float, float]


@dataclass(frozen=True)
class Part:
    """A number behind a score."""

    column: MetricColumn
    value: float | None
    """Mean over seeds."""
    interval: Ends | None
    """Bootstrap interval of `value` over questions, for an attack's area."""
    start: float | None
    retain: float | None


@dataclass(frozen=True)
class Score:
    """A setting's answer to one question."""

    label: str
    mean: float | None
    by_seed: Mapping[int, float]
    interval: Interval | None
    """The mean's t interval over seeds; None without one."""
    warnings: Mapping[str, str]
    """Why the number is no success, by kind: `over-forgotten`, `unfamiliar`, `bypassed`."""
    parts: tuple[Part, ...] = ()
    why_not: str = ""
    """Reason why there is no number; empty if there is one, and if no reason is known."""

    @property
    def warning(self) -> str:
        """All warnings; empty without one."""
        return "; ".join(self.warnings.values())


def best_beyond_chance(scores: Sequence[Score]) -> int | None:
    """Return the position of the score that is better than every other one beyond chance.

    Returns:
        None if no score is, or if fewer than two have a mean.
    """
    known = {i: score.by_seed for i, score in enumerate(scores) if score.mean is not None}
    for position, by_seed in known.items():
        others = [other for i, other in known.items() if i != position]
        if others and all(is_above(by_seed, other) for other in others):
            return position
    return None


def set_title(name: str) -> str:
    """Name an evaluation set in a sentence: `forget set`, `real authors`."""
    return f"{name} set" if name in get_args(Role) else name.replace("_", " ")


def questions(schema: BenchmarkSchema) -> tuple[Summary, ...]:
    """List the scores that answer a question; those that need both other models first.

    Without those that are relative to a model, or made of a number, that the benchmark has not.
    """
    columns = {column.name for column in schema.plan.columns}
    result = [
        summary
        for summary in schema.plan.summaries.values()
        if summary.question
        and summary.relative_to <= schema.references
        and columns.issuperset(summary.parts())
    ]
    return tuple(
        sorted(result, key=lambda s: ("retain" not in s.relative_to, "start" not in s.relative_to))
    )


class Scorer:
    """Scores the settings of one model and split.

    retain, start  the rows of both other models, where they were evaluated
    evaluation     reads the evaluation of a row
    """

    def __init__(
        self,
        schema: BenchmarkSchema,
        retain: TableRow | None,
        start: TableRow | None,
        evaluation: Callable[[TableRow], Evaluation | None],
    ) -> None:
        self._schema, self._evaluation = schema, evaluation
        self._measures = schema.measures
        self._retain, self._start = map(self._model, (retain, start))
        self._of_retain, self._of_start = (
            {} if row is None else row.metrics for row in (retain, start)
        )

    def _model(self, row: TableRow | None) -> EvaluatedModel | None:
        evaluation = None if row is None else self._evaluation(row)
        if row is None or evaluation is None:
            return None
        return EvaluatedModel(evaluation.sets, row.metrics)

    def scores(self, rows: Sequence[TableRow]) -> tuple[Score, ...]:
        """Score a setting, given as the rows of its seeds."""
        seen = [e for row in rows if (e := self._evaluation(row)) is not None]
        if len(seen) < len(rows):
            seen = []  # Intervals and warnings are of all seeds, as the numbers beside them.
        return tuple(self._score(question, rows, seen) for question in questions(self._schema))

    def _score(self, score: Summary, rows: Sequence[TableRow], seen: Sequence[Evaluation]) -> Score:
        column, plan = score.columns()[0], self._schema.plan
        rivals = [  # other scores that share a part with this one
            summary.columns()[0].name
            for summary in plan.summaries.values()
            if not summary.question and {*summary.parts()} & {*score.parts()}
        ]
        parts: list[Part] = []
        for part in (*score.parts(), *rivals):
            value = mean_of([row.metrics.get(part) for row in rows])
            parts.append(
                Part(
                    self._schema.column(part),
                    value,
                    None if value is None else self._interval(part, seen),
                    self._of_start.get(part),
                    self._of_retain.get(part),
                )
            )
        mean = mean_of([row.metrics.get(column.name) for row in rows])
        by_seed = {r.seed: v for r in rows if (v := r.metrics.get(column.name)) is not None}
        interval = None if mean is None else t_interval([*by_seed.values()])
        warnings = dict(self._warnings({*score.parts()}, parts, seen))
        return Score(column.label, mean, by_seed, interval, warnings, tuple(parts))

    def _interval(self, part: str, seen: Sequence[Evaluation]) -> Ends | None:
        for summary in self._schema.plan.summaries.values():
            if (
                isinstance(summary, MembershipInference)
                and summary.columns()[0].name == part
                and seen
            ):
                found = [
                    summary.pair(MetricInputs(EvaluatedModel(item.sets), self._retain, self._start))
                    for item in seen
                ]
                pairs = [pair for pair in found if pair is not None]
                return mean_auc_interval(pairs) if len(pairs) == len(found) else None
        return None

    def _warnings(
        self, made_of: set[str], parts: Sequence[Part], seen: Sequence[Evaluation]
    ) -> Iterable[tuple[str, str]]:
        """Describe where the model is beyond the retain model, by kind."""
        lead = parts[0]
        if lead.value is not None and lead.retain is not None and self._is_beyond(lead, seen):
            measure, name = self._measures[lead.column.name]
            sentences = [
                f"over-forgotten: {measure.metric.label.lower()} on the {set_title(name)} is "
                f"{lead.value:.3f}, below the retain model's {lead.retain:.3f}"
            ]
            sentences += [
                f"{part.column.label} rewards it: {part.value:.2f}, the retain model has "
                f"{part.retain:.2f}"
                for part in parts
                if part.column.name not in made_of
                and part.value is not None
                and part.retain is not None
                and part.value > part.retain
            ]
            yield "over-forgotten", "; ".join(sentences)
        below = [
            f"{part.column.label} {part.value:.3f} (retain model {part.retain:.3f})"
            for part in parts
            if part.value is not None
            and part.interval is not None
            and part.retain is not None
            and part.interval[1] < part.retain
        ]
        if below:
            yield (
                "unfamiliar",
                "the forget rows look less familiar than rows that no model has seen, which gives "
                f"them away as well: {', '.join(below)}",
            )

    def _is_beyond(self, part: Part, seen: Sequence[Evaluation]) -> bool:
        """True if a low value is wanted, and it is below the retain model's by more than chance.

        Question by question: mean over seeds minus the retain model's value, against the standard
        error of the mean difference.
        """
        known = part.column.name in self._measures and part.column.better == "lower"
        if not known or self._retain is None or not seen:
            return False
        measure, name = self._measures[part.column.name]
        sets = [item.get(name) for item in (*(e.sets for e in seen), self._retain.sets)]
        values = [None if item is None else measure.per_example(item) for item in sets]
        result = [value for value in values if value is not None]
        if len(result) < len(values) or len({item.shape for item in result}) > 1:
            return False
        *subset, aim = result
        differences = np.mean(subset, axis=0) - aim  # [n]
        if differences.size < 2 or not np.isfinite(differences).all():
            return False
        if differences.size < FEW:  # a normal interval of a few is too narrow
            ends = mean_interval(differences, difference_bounds(measure.metric.bounds))
            return ends is not None and ends[1] < 0
        error = differences.std(ddof=1) / np.sqrt(differences.size)
        return bool(differences.mean() < -_Z * error)
