"""Gains under an attack: metrics and answers before and after, on the same questions. Pure.

The retain model has never seen the forget rows. What it gains under the same attack is the null:
an attack that teaches, or a question that helps, raises both models alike. Where it loses, nothing
is subtracted.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from unlearnbench.analysis.lasting import MEMORIZATION
from unlearnbench.api.metric import UNDER_ATTACK, Measure, MetricColumn, Role
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.base.errors import PluginError
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.stats.mean_interval import difference_bounds, mean_interval
from unlearnbench.stats.t_interval import LEVEL

_ORDER = ("expected_best", *MEMORIZATION)
"""Metrics by which a gain is judged, the first one that there is; that of sampled answers first."""


@dataclass(frozen=True, eq=False)
class AttackedMetric:
    """A metric of one set, on the questions that an attack evaluates."""

    measure: Measure
    column: MetricColumn
    values: Mapping[str, Mapping[str, FloatArray]]
    """[n] by question: of the `model`, `retain` and `start` model, then by variant, the plain one
    being ``; without those that are undefined."""

    def numbers(self, model: str) -> dict[str, float | None]:
        """The metric's numbers of a model, by variant."""
        values = self.values.get(model, {})
        return {variant: self.measure.metric.value(v) for variant, v in values.items()}


@dataclass(frozen=True)
class Gain:
    """The gain of a metric of memorisation at the point of an attack where it is largest."""

    variant: str
    label: str
    n: int
    """Number of questions."""
    points: int
    """Number of points of which this is the largest: intervals are wider for it (Bonferroni)."""
    before: float | None
    """None of a metric that only the attack makes, unless `before_label` is given."""
    after: float
    interval: tuple[float, float] | None
    """Interval of the gain over questions; of `after` where there is no `before`."""
    start: float | None
    """The start model's plain value."""
    before_label: str = ""
    """Label of the metric of greedy answers that sampled answers are compared with, of which
    `before`, `retain_before` and `start` are. Empty if they are of the same metric."""
    retain_before: float | None = None
    retain_after: float | None = None
    excess_interval: tuple[float, float] | None = None
    """Interval of `excess`."""
    level: float = LEVEL

    @property
    def gain(self) -> float:
        """The difference that the attack makes."""
        return self.after - (self.before or 0.0)

    @property
    def retain_gain(self) -> float | None:
        """The difference that it makes to the retain model; None without one."""
        if self.retain_after is None:
            return None
        return self.retain_after - (self.retain_before or 0.0)

    @property
    def excess(self) -> float | None:
        """The gain beyond the retain model's; a loss of that one subtracts nothing."""
        return None if self.retain_gain is None else self.gain - max(0.0, self.retain_gain)

    @property
    def share(self) -> float | None:
        """The excess as a share of what the start model knows more than the model before."""
        if self.start is None or self.before is None or self.start - self.before <= 0.01:
            return None
        return None if self.excess is None else self.excess / (self.start - self.before)

    @property
    def comes_back(self) -> bool | None:
        """True if more comes back than to the retain model; None where that is not known."""
        return None if self.excess_interval is None else self.excess_interval[0] > 0


def values_on(
    measure: Measure, seen: SetEvaluation | None, questions: Sequence[str]
) -> FloatArray | None:
    """[n] the values of some questions of a set, which stand in its order; None without any."""
    with suppress(PluginError):  # of a metric that fails: the plain summary warns of it
        values = None if seen is None else measure.per_example(seen)
        if seen is not None and values is not None:
            places = iter(enumerate(seen.questions))
            return values[[next(i for i, text in places if text == item) for item in questions]]
    return None


@dataclass(frozen=True, eq=False)
class AttackFindings:
    """The evaluations of a model under one attack, compared."""

    points: Sequence[str]
    """The variants at which the attack failed with no model."""
    metrics: Sequence[AttackedMetric]
    """Those of the sets under the attack, the most telling ones first."""
    gain: Gain | None
    """None where no metric of a forget set could be measured."""


def attack_findings(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    models: Mapping[str, Mapping[str, Evaluation]],
    variants: Iterable[str],
) -> AttackFindings:
    """Compare the evaluations of a model plain and under an attack.

    models    evaluations by variant (the plain one: ``) of the `model`, and where there are those
              of the `retain` and `start` model, of which the latter is not attacked
    variants  of the attack
    """
    attacked = [of for name, of in models.items() if name != "start"]
    points = [name for name in variants if all(name in of for of in attacked)]
    first = models["model"][points[0]].sets if points else {}
    metrics: list[AttackedMetric] = []
    for name, seen in first.items():
        for measure in (item for item in plan.measures if name in item.sets):
            values = {
                model: _values_by_variant(measure, name, of, ["", *points], seen.questions)
                for model, of in models.items()
            }
            if values["model"].keys() & {*points}:
                metrics.append(AttackedMetric(measure, measure.column(name, roles[name]), values))
    ranks = {name: rank for rank, name in enumerate(_ORDER)}
    metrics.sort(key=lambda item: ranks.get(item.measure.name, len(_ORDER)))
    return AttackFindings(points, metrics, largest_gain(metrics, roles, points))


def _values_by_variant(
    measure: Measure,
    set_name: str,
    evaluations: Mapping[str, Evaluation],
    variants: Iterable[str],
    questions: Sequence[str],
) -> dict[str, FloatArray]:
    """Compute a metric of one model on the same questions, by variant.

    A plain evaluation may lack what the metric reads, although the attack's evaluation has it. Its
    values are NaN then: that the model knew nothing before the attack would be wrong.
    """
    values: dict[str, FloatArray] = {}
    for variant in variants:
        seen = evaluations[variant].sets.get(set_name) if variant in evaluations else None
        found = values_on(measure, seen, questions)
        if found is not None:
            values[variant] = found
        elif seen is not None and variant == "" and not measure.metric.reads & UNDER_ATTACK:
            values[variant] = np.full(len(questions), np.nan)
    return values


def _defined(values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    return {variant: of for variant, of in values.items() if np.isfinite(of).all()}


def largest_gain(
    metrics: Sequence[AttackedMetric], roles: Mapping[str, Role], points: Sequence[str]
) -> Gain | None:
    """The gain of the most telling metric of a forget set; None where no metric has values.

    metrics, points  of `AttackFindings`

    One that only the attack makes comes first: an attack that samples leaves the greedy answers,
    and what is known of them, as they were. The samples are compared with the greedy answers by the
    metric that has the same scale (`Metric.greedy`), if there is one. A metric whose plain values
    are undefined has no gain.
    """
    able = [
        item
        for item in metrics
        if roles[item.column.set] == "forget"
        and item.measure.metric.knows == "higher"
        and _can_have_gain(item.values["model"])
    ]
    if not able:
        return None
    item = min(able, key=lambda item: "" in item.values["model"])
    values, null = (_defined(item.values.get(name, {})) for name in ("model", "retain"))
    plain, plain_null = values.pop("", None), null.get("")
    start, before_label = item.numbers("start").get(""), ""
    greedy = _greedy_counterpart(item, metrics)
    if plain is None and greedy is not None:
        of_model, of_retain = (
            _defined(greedy.values.get(name, {})) for name in ("model", "retain")
        )
        plain, plain_null = of_model.get(""), of_retain.get("")
        start, before_label = greedy.numbers("start").get(""), greedy.column.label
    if (plain_null is None) != (plain is None):
        null = {}  # the retain model's gain is not known
        plain_null = None
    largest = max(reversed(values), key=lambda v: float(values[v].mean()))  # of equals the last
    after, after_null, level = values[largest], null.get(largest), 1 - (1 - LEVEL) / len(points)
    metric_bounds = item.measure.metric.bounds
    gained, excess = after if plain is None else after - plain, None
    bounds = metric_bounds if plain is None else difference_bounds(metric_bounds)
    if after_null is not None:
        taught = after_null if plain_null is None else after_null - plain_null
        counted = taught * (taught.mean() > 0)
        excess = mean_interval(gained - counted, difference_bounds(bounds), level=level)
    return Gain(
        variant=largest,
        label=item.column.label,
        n=after.size,
        points=len(points),
        before=_mean(plain),
        after=float(after.mean()),
        interval=mean_interval(gained, bounds, level=level),
        start=start,
        before_label="" if plain is None else before_label,
        retain_before=_mean(plain_null),
        retain_after=_mean(after_null),
        excess_interval=excess,
    )


def _can_have_gain(values: Mapping[str, FloatArray]) -> bool:
    """Whether a metric is defined at some point of the attack, and before it if it exists there."""
    defined = _defined(values)
    return bool(defined.keys() - {""}) and ("" in defined or "" not in values)


def _greedy_counterpart(
    sampled: AttackedMetric, metrics: Sequence[AttackedMetric]
) -> AttackedMetric | None:
    """The metric of greedy answers that a metric of sampled answers is compared with."""
    name = sampled.measure.metric.greedy.replace("-", "_")
    on_set = (item for item in metrics if item.column.set == sampled.column.set)
    return next((item for item in on_set if name and item.measure.name == name), None)


def _mean(values: FloatArray | None) -> float | None:
    return None if values is None else float(values.mean())
