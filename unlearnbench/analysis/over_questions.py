"""Intervals and tests over the questions of a row: would other questions give other numbers?

The numbers themselves are taken from the table. An interval needs the value of each question, which
no table contains, so the evaluations behind the rows are read here. `stats/mean_interval.py`
computes the interval of a mean. Other numbers get theirs by resampling the questions (bootstrap).

Rows of several seeds are averaged question by question first. The intervals are then about other
questions for these seeds, not about other seeds.

A column of the table is either a *measure* on one set (a metric whose number is computed from a
value for each question, such as `probability_forget`) or belongs to a *summary* (a metric that is
computed from other numbers, such as model utility, or from two sets, such as a membership attack).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from unlearnbench.api.benchmark import Headline
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import EvaluatedModel, Measure, MetricInputs, Summary
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.results.asked_rows import Observed
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import Sensitivity, ks_power
from unlearnbench.stats.mean_interval import difference_bounds, mean_interval
from unlearnbench.stats.roc import mean_auc_interval
from unlearnbench.stats.t_interval import LEVEL

DRAWS = 500
"""Resamples of the questions for an interval of a number that is not a mean."""
FEWEST_DRAWN = 10
"""Fewest questions of a set for resampling. Fewer say too little about questions that were not
asked."""
KEPT_SHARE = "kept_share"
"""Key of the interval of the share of the start model's headline number that is kept."""
_MOST_TELLING = ("extraction_strength", "exact_memorization", "probability", "rouge")
"""Metrics of a forget set by which memorisation is compared with the retain model's, the most
telling one first."""
Ends = tuple[float, float]
"""Low and high end of an interval."""


@dataclass(frozen=True)
class Difference:
    """A number compared with the retain model's, question by question."""

    label: str
    value: float
    """Mean over questions, and over seeds if there are several."""
    retain: float
    interval: Ends
    """Of `value` less `retain`."""

    @property
    def is_above(self) -> bool:
        """Whether the number is above the retain model's beyond chance."""
        return self.interval[0] > 0

    @property
    def is_below(self) -> bool:
        """Whether the number is below the retain model's beyond chance."""
        return self.interval[1] < 0


@dataclass(frozen=True)
class MembershipArea:
    """The area under the ROC curve of a membership attack."""

    label: str
    column: str
    area: float
    retain: float | None
    """The retain model's area, which is the aim; None without a retain model."""
    interval: Ends | None

    @property
    def aim(self) -> float:
        """The area that the model should have: ½, which is chance, without a retain model."""
        return 0.5 if self.retain is None else self.retain


class OverQuestions:
    """Intervals and tests of rows of one model and split."""

    def __init__(
        self,
        schema: BenchmarkSchema,
        observed: Observed,
        *,
        retain: TableRow | None,
        start: TableRow | None,
    ) -> None:
        """Take the models that rows are compared with.

        Args:
            schema: Schema of the benchmark.
            observed: Reads the evaluation behind a row, see `Results.observed`.
            retain: Row of the retain model, if it was evaluated.
            start: Row of the start model, if it was evaluated.
        """
        self._schema = schema
        self._observed = observed
        self.retain = retain
        self.start = start

    def intervals(self, row: TableRow) -> Mapping[str, Ends]:
        """Return the intervals of a row's numbers by column, for columns that have one.

        These are the metrics by set, the headline number of what is kept, the membership attack
        that is farthest off, and the share of the start model's number (`KEPT_SHARE`).
        """
        found: dict[str, Ends | None] = {}
        for measure in self._schema.plan.measures:
            for set_name in measure.sets:
                column = f"{measure.name}_{set_name}"
                found[column] = self._measured_interval(measure, set_name, row)
        kept = self._schema.headline.kept.column
        # Of some benchmarks it is a metric of one set, which may have too few questions to draw.
        found[kept] = percentiles(self._drawn(row, kept)) or found.get(kept)
        found[KEPT_SHARE] = self._kept_share_interval(row)
        attack = self.strongest_attack(row)
        if attack is not None:
            found[attack.column] = attack.interval
        return {column: ends for column, ends in found.items() if ends is not None}

    def area_interval(self, rows: Sequence[TableRow], column: str) -> Ends | None:
        """Return the interval of a membership attack's area, as a mean over rows.

        Args:
            rows: Rows of the seeds of one setting.
            column: Name of the attack's column.

        Returns:
            None for the column of another metric, and if the evaluation of a row cannot be read.
        """
        attack = self._membership_attacks.get(column)
        if attack is None or not rows:
            return None
        pairs: list[tuple[FloatArray, FloatArray]] = []
        for row in rows:
            pair = self._scores(attack, row)
            if pair is None:
                return None
            pairs.append(pair)
        return mean_auc_interval(pairs)

    def difference(
        self, rows: Sequence[TableRow], column: str, *, level: float = LEVEL
    ) -> Difference | None:
        """Compare the mean over rows with the retain model's number, question by question.

        Args:
            rows: Rows of the seeds of one setting.
            column: Name of a metric of one set.
            level: Probability with which the interval contains the difference over all questions.

        Returns:
            None if the column is of no set, if a value by question is unknown or not finite, and if
            the questions are too few or too equal for an interval.
        """
        if column not in self._schema.measures or self.retain is None or not rows:
            return None
        measure, set_name = self._schema.measures[column]
        aim = self._values_by_question(measure, set_name, self.retain)
        by_row = [self._values_by_question(measure, set_name, row) for row in rows]
        known = [values for values in by_row if values is not None]
        if aim is None or len(known) < len(rows):
            return None
        if any(values.shape != aim.shape for values in known):
            return None
        means = np.mean(known, axis=0)  # [n]
        bounds = difference_bounds(measure.metric.bounds)
        ends = mean_interval(means - aim, bounds, level=level)
        if ends is None:
            return None
        label = measure.column(set_name, self._schema.roles[set_name]).label
        return Difference(label, float(means.mean()), float(aim.mean()), ends)

    def memorization(self, row: TableRow) -> Difference | None:
        """Compare the most telling metric of a forget set with the retain model's.

        Returns:
            None if no metric of `_MOST_TELLING` can be compared, see `difference`.
        """
        for column in self._columns_of_memorization():
            difference = self.difference([row], column)
            if difference is not None:
                return difference
        return None

    def strongest_attack(self, row: TableRow) -> MembershipArea | None:
        """Return the membership attack whose area is farthest from the aim; None without one.

        An attack whose reference is the retain model gives the retain model itself an area of ½,
        whatever it knows. Such an area is no aim, so the attack is left out if there is a retain
        model.
        """
        areas: list[MembershipArea] = []
        for column, attack in self._membership_attacks.items():
            area = row.metrics.get(column)
            retain = None
            if self.retain is not None:
                retain = self.retain.metrics.get(column)
                if retain is None or "retain" in attack.relative_to:
                    continue
            if area is not None:
                areas.append(MembershipArea(attack.label, column, area, retain, None))
        if not areas:
            return None
        farthest = max(areas, key=lambda attack: abs(attack.area - attack.aim))
        # An interval takes long, so only the one that is returned gets it.
        return replace(farthest, interval=self.area_interval([row], farthest.column))

    def kept_share(self, row: TableRow) -> float | None:
        """Return the share of the start model's headline number that a row keeps.

        None if one of the two numbers is unknown or 0.
        """
        start = None if self.start is None else self.start.kept
        return row.kept / start if row.kept and start else None

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """The distances that the headline's test detects; None if the ratios are unknown."""
        retain = None if self.retain is None else self._observed(self.retain)
        return None if retain is None else sensitivity_of_test(self._schema.headline, retain)

    @cached_property
    def _membership_attacks(self) -> Mapping[str, MembershipInference]:
        """Membership attacks by the column of their area."""
        return {
            summary.columns()[0].name: summary
            for summary in self._schema.plan.summaries.values()
            if isinstance(summary, MembershipInference)
        }

    def _scores(
        self, attack: MembershipInference, row: TableRow
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return the scores of members and of others; None if they are unknown."""
        model = self._evaluated(row)
        if model is None:
            return None
        return attack.pair(MetricInputs(model, self._retain_model, self._start_model))

    @cached_property
    def _retain_model(self) -> EvaluatedModel | None:
        return self._evaluated(self.retain)

    @cached_property
    def _start_model(self) -> EvaluatedModel | None:
        return self._evaluated(self.start)

    def _evaluated(self, row: TableRow | None) -> EvaluatedModel | None:
        evaluation = None if row is None else self._observed(row)
        if row is None or evaluation is None:
            return None
        return EvaluatedModel(evaluation.sets, row.metrics)

    def _columns_of_memorization(self) -> Iterator[str]:
        """Yield the columns of `_MOST_TELLING` on forget sets, the most telling one first."""
        forget_sets = self._schema.sets("forget")
        for name in _MOST_TELLING:
            for measure in self._schema.plan.measures:
                if measure.name == name:
                    yield from (f"{name}_{on}" for on in measure.sets if on in forget_sets)

    def _measured_interval(self, measure: Measure, set_name: str, row: TableRow) -> Ends | None:
        """Return the interval of a metric of one set."""
        values = self._finite_values(measure, set_name, row)
        if values is None:
            return None
        if measure.metric.value(values) == values.mean():
            return mean_interval(values, measure.metric.bounds)
        return percentiles(self._drawn(row, f"{measure.name}_{set_name}"))

    def _kept_share_interval(self, row: TableRow) -> Ends | None:
        """Return the interval of `kept_share`, with the same questions drawn for both models."""
        if self.start is None or self.kept_share(row) is None:
            return None
        kept = self._schema.headline.kept.column
        of_model = self._drawn(row, kept)
        of_start = self._drawn(self.start, kept)
        if of_model is None or of_start is None or not of_start.all():
            return None
        return percentiles(of_model / of_start)

    def _values_by_question(
        self, measure: Measure, set_name: str, row: TableRow
    ) -> FloatArray | None:
        """Return a metric's values [n] on a set.

        None if the set was not evaluated, or without what the metric reads of it.
        """
        evaluation = self._observed(row)
        if evaluation is None or set_name not in evaluation.sets:
            return None
        with suppress(PluginError):  # The table warns of a metric that fails.
            return measure.per_example(evaluation.sets[set_name])
        return None

    def _finite_values(self, measure: Measure, set_name: str, row: TableRow) -> FloatArray | None:
        """Return a metric's values [n]; None for fewer than two, and if one is not finite."""
        values = self._values_by_question(measure, set_name, row)
        if values is None or values.size < 2 or not np.isfinite(values).all():
            return None
        return values

    def _drawn(self, row: TableRow, column: str) -> FloatArray | None:
        """Return a column [DRAWS] on resampled questions of each set.

        The same questions are drawn for every model, so that the draws of two models are paired.

        Returns:
            None if the column is neither of one metric nor of one summary, if a value is not
            finite, or if a set has too few questions.
        """
        plan = self._schema.plan.of_columns({column})
        summary = None
        if len(plan.summaries) == 1:
            (summary,) = plan.summaries.values()
        values_of: dict[tuple[str, str], tuple[Measure, FloatArray]] = {}
        for measure in plan.measures:
            for set_name in measure.sets:
                values = self._finite_values(measure, set_name, row)
                if values is None:
                    return None
                values_of[measure.name, set_name] = measure, values
        if not values_of or (summary is None and len(values_of) > 1):
            return None
        fewest_questions = min(values.size for _, values in values_of.values())
        if fewest_questions < FEWEST_DRAWN:
            return None
        return np.array(list(_resampled(summary, column, values_of)), dtype=np.float64)


def sensitivity_of_test(headline: Headline, retain: Evaluation) -> Sensitivity | None:
    """Return the distances that the headline's test detects, by the retain model's truth ratios.

    None if the headline has no test, and if the ratios cannot be computed: the profile may be of
    another version, or the evaluation may lack the forget set.
    """
    if headline.forgotten.test is not None:
        with suppress(EvaluationError, KeyError):
            return ks_power(forget_ratios(retain))
    return None


def percentiles(drawn: FloatArray | None) -> Ends | None:
    """Return the interval of a number by its draws [DRAWS] (percentile bootstrap).

    Returns:
        None if the number is undefined for some of the resampled questions.
    """
    if drawn is None or not np.isfinite(drawn).all():
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled(
    summary: Summary | None,
    column: str,
    values_of: Mapping[tuple[str, str], tuple[Measure, FloatArray]],
) -> Iterator[float]:
    """Yield a column on resampled questions; NaN if it is undefined on them.

    Args:
        summary: What computes the column from the metrics of `values_of`; None if the column is one
            of these metrics.
        column: Name of the column.
        values_of: By metric and set, the metric and its values [n] by question.
    """
    generator = np.random.default_rng(0)
    sizes = {set_name: values.size for (_, set_name), (_, values) in values_of.items()}
    for _ in range(DRAWS):
        # All metrics of a set are resampled by the same questions.
        places = {
            set_name: generator.integers(size, size=size)
            for set_name, size in sorted(sizes.items())
        }
        numbers = {
            f"{name}_{set_name}": measure.metric.value(values[places[set_name]])
            for (name, set_name), (measure, values) in values_of.items()
        }
        if summary is not None:
            numbers |= summary.compute(MetricInputs(EvaluatedModel({}, numbers)))
        value = numbers.get(column)
        yield np.nan if value is None else value
