"""The verdict on one model: is it forgotten, private, is the rest kept; with intervals. Pure."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    EvaluatedModel,
    Measure,
    MetricInputs,
    Summary,
    Values,
)
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.evaluation.summary import forget_ratios, plan_of, summarize
from unlearnbench.evaluation.word_check import evaluated_shares, rouge_sets
from unlearnbench.stats.ks_test import Sensitivity, ks_power
from unlearnbench.stats.mean_interval import difference_bounds, mean_interval
from unlearnbench.stats.roc import auc_interval
from unlearnbench.stats.t_interval import LEVEL

DRAWS = 500
"""Resamples of the questions behind an interval of a number that is no mean."""
FEWEST_DRAWN = 10
"""Questions of a set below which resamples say too little about questions that were not asked."""
Ends = tuple[float, float]
"""Low and high end of an interval."""


Gap = tuple[str, float, float, Ends]
"""Label of a metric, its value, the retain model's, and the interval of the difference."""
Attack = tuple[str, str, float, float | None, Ends | None]
"""Label of a membership attack, its column, area, the retain model's area, and the area's
interval."""


@dataclass(frozen=True, eq=False)
class ModelVerdict:
    """A model, the models that it is compared with, and what the numbers of all three show."""

    profile: Profile
    benchmark: Benchmark
    model: Evaluation
    retain: Evaluation | None = None
    start: Evaluation | None = None

    @cached_property
    def plan(self) -> MetricPlan:
        """The metrics of the benchmark."""
        return plan_of(self.profile, self.benchmark)

    @cached_property
    def values(self) -> Values:
        """The model's metrics by column."""
        return summarize(self.model, self.retain, self.profile, self.start, self.benchmark)

    @cached_property
    def of_retain(self) -> Values:
        """The retain model's own metrics; empty without one."""
        start = None if self.start is None else EvaluatedModel(self.start.sets)
        return {} if self.retain is None else self.plan.values(self.retain.sets, start=start)

    @cached_property
    def of_start(self) -> Values:
        """The start model's own metrics; empty without one."""
        return {} if self.start is None else self.plan.values(self.start.sets)

    @cached_property
    def intervals(self) -> Mapping[str, Ends]:
        """Interval over questions by column; `kept_share`: of the share of the start's number."""
        result: dict[str, Ends] = {}
        for measure in self.plan.measures:
            for name in measure.sets:
                values, column = _finite(measure, self.model, name), f"{measure.name}_{name}"
                if values is None:
                    continue
                if measure.metric.value(values) == values.mean():
                    ends = mean_interval(values, measure.metric.bounds)
                else:
                    ends = percentiles(self._drawn(self.model, column))
                result |= {} if ends is None else {column: ends}
        kept = self.benchmark.headline.kept.column
        drawn = self._drawn(self.model, kept)
        of_start = None if self.start is None else self._drawn(self.start, kept)
        shares = None
        if drawn is not None and of_start is not None and self.kept_share and of_start.all():
            shares = drawn / of_start  # of the same questions
        attack = self.strongest_attack
        further = {
            kept: percentiles(drawn),
            "kept_share": percentiles(shares),
            **({attack[1]: attack[-1]} if attack else {}),
        }
        return result | {column: ends for column, ends in further.items() if ends is not None}

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """The distances that the headline's test detects; None where the ratios are unknown."""
        if self.retain is not None and self.benchmark.headline.forgotten.test is not None:
            with suppress(EvaluationError, KeyError):
                return ks_power(forget_ratios(self.retain))
        return None

    @cached_property
    def memorization(self) -> Gap | None:
        """The most telling metric of a forget set beside the retain model's."""
        if self.retain is None:
            return None
        for measure, name in self._of_forget_sets():
            model, goal = (
                measure.per_example(item.sets[name]) if name in item.sets else None
                for item in (self.model, self.retain)
            )
            if model is None or goal is None or model.shape != goal.shape:
                continue
            bounds = difference_bounds(measure.metric.bounds)
            if (ends := mean_interval(model - goal, bounds)) is not None:
                label = measure.column(name, "forget").label
                return label, float(model.mean()), float(goal.mean()), ends
        return None

    def _of_forget_sets(self) -> Iterator[tuple[Measure, str]]:
        for key in ("extraction_strength", "exact_memorization", "probability", "rouge"):
            for measure in (item for item in self.plan.measures if item.name == key):
                for name in measure.sets:
                    if self.benchmark.roles.get(name) == "forget":
                        yield measure, name

    @cached_property
    def strongest_attack(self) -> Attack | None:
        """The attack whose area is farthest from the retain model's, or from ½ without one."""
        result: list[tuple[float, MembershipInference, str]] = []
        for summary in self.plan.summaries.values():
            if isinstance(summary, MembershipInference):
                column = summary.columns()[0].name
                area, aim = self.values.get(column), self.of_retain.get(column)
                # One that takes the retain model for its reference has no area of it to aim at.
                if area is not None and (aim is not None or self.retain is None):
                    result.append((abs(area - (0.5 if aim is None else aim)), summary, column))
        if not result:
            return None
        _, attack, column = max(result, key=lambda item: item[0])
        start = None if self.start is None else EvaluatedModel(self.start.sets)
        pair = attack.pair(MetricInputs(EvaluatedModel(self.model.sets), start=start))
        ends = None if pair is None else auc_interval(*pair)
        area, aim = self.values[column] or 0.0, self.of_retain.get(column)
        return attack.label, column, area, aim, ends

    @cached_property
    def uncounted(self) -> Mapping[str, float]:
        """Share of true answers by set whose words the profile does not count."""
        return evaluated_shares(self.model, rouge_sets(self.plan))

    @property
    def kept_share(self) -> float | None:
        """Share of the start model's number that is kept."""
        column = self.benchmark.headline.kept.column
        part, begin = self.values.get(column), self.of_start.get(column)
        return part / begin if part and begin else None

    def _drawn(self, model: Evaluation, column: str) -> FloatArray | None:
        """[DRAWS] a column on resampled questions of each set; the same ones for every model."""
        plan = self.plan.of_columns({column})
        (summary,) = plan.summaries.values() if len(plan.summaries) == 1 else (None,)
        arrays: dict[tuple[str, str], tuple[Measure, FloatArray]] = {}
        for measure in plan.measures:
            for name in measure.sets:
                if (values := _finite(measure, model, name)) is None:
                    return None
                arrays[measure.name, name] = measure, values
        if not arrays or (summary is None and len(arrays) > 1):
            return None
        if min(values.size for _, values in arrays.values()) < FEWEST_DRAWN:
            return None
        return np.array([*_resampled(summary, column, arrays)], dtype=np.float64)


def _finite(measure: Measure, model: Evaluation, name: str) -> FloatArray | None:
    """The values of a set, several numbers; None where that cannot be had."""
    if name in model.sets:
        with suppress(PluginError):  # the table warns of it
            values = measure.per_example(model.sets[name])
            if values is not None and values.size > 1 and np.isfinite(values).all():
                return values
    return None


def percentiles(drawn: FloatArray | None) -> Ends | None:
    """Return an interval; None if the number is undefined for some of the resampled questions."""
    if drawn is None or not np.isfinite(drawn).all():
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled(
    summary: Summary | None,
    column: str,
    arrays: Mapping[tuple[str, str], tuple[Measure, FloatArray]],
) -> Iterator[float]:
    rng = np.random.default_rng(0)
    sizes = {name: values.size for (_, name), (_, values) in arrays.items()}
    for _ in range(DRAWS):
        places = {name: rng.integers(size, size=size) for name, size in sorted(sizes.items())}
        numbers = {
            f"{key}_{name}": measure.metric.value(values[places[name]])
            for (key, name), (measure, values) in arrays.items()
        }
        if summary is not None:
            numbers |= summary.compute(MetricInputs(EvaluatedModel({}, numbers)))
        value = numbers.get(column)
        yield np.nan if value is None else value
