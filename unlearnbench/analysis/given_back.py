"""Gains under an attack: metrics and answers before and after, on the same questions. Pure.

The retain model has never seen the forget rows. What it gains under the same attack is the null:
an attack that teaches, or a question that helps, raises both models alike. Where it loses, nothing
is subtracted.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from unlearnbench.analysis.lasting import MEMORIZATION, attack_of
from unlearnbench.api.attack import Attack, PromptAttack
from unlearnbench.api.metric import Measure, MetricColumn, Role
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.api.registry import load
from unlearnbench.base.errors import PluginError
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.stats.bootstrap_mean import bootstrap_mean
from unlearnbench.stats.sampled_scores import leak_at_k, mean_bound
from unlearnbench.stats.t_interval import LEVEL
from unlearnbench.stats.worst_case import worst_case

_ORDER = ("expected_best", *MEMORIZATION)
"""Metrics by which a gain is judged, the first one that there is; that of sampled answers first."""
Means = tuple[float | None, ...]


@dataclass(frozen=True, eq=False)
class Attacked:
    """The evaluations of one model: plain, and at the points of one attack."""

    plain: Evaluation
    points: Mapping[str, Evaluation]
    """By variant."""


@dataclass(frozen=True)
class AttackedMetric:
    """A metric of one set, plain and at the points of an attack, on the rows that it evaluates."""

    column: MetricColumn
    model: Means
    """The plain value, then one for each point."""
    retain: Means | None
    start: float | None
    """The plain value of the start model."""


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
    """None of a metric that only the attack makes, as of sampled answers."""
    after: float
    interval: tuple[float, float] | None
    """Interval of the gain over questions; of `after` where there is no `before`."""
    start: float | None
    """The start model's plain value."""
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


@dataclass(frozen=True, eq=False)
class _Measured:
    """Values of a metric by question of one set: plain, then at each point of the attack."""

    measure: Measure
    set: str
    model: Sequence[FloatArray | None]
    retain: Sequence[FloatArray | None]
    """Empty without a retain model."""
    start: FloatArray | None
    """Plain values of the start model."""

    @property
    def rank(self) -> int:
        """The most telling metrics first."""
        return _ORDER.index(self.measure.name) if self.measure.name in _ORDER else len(_ORDER)

    def means(self, every: Sequence[FloatArray | None]) -> Means:
        """The metric's number for each evaluation."""
        return tuple(None if v is None else self.measure.metric.value(v) for v in every)


def _measured(
    plan: MetricPlan, model: Attacked, retain: Attacked | None, start: Evaluation | None
) -> list[_Measured]:
    """Every metric of the sets under an attack, on the questions that the attack evaluates."""
    first = next(iter(model.points.values())).sets
    measureds: list[_Measured] = []
    for name, seen in first.items():
        for measure in (item for item in plan.measures if name in item.sets):
            part, null, known = (
                [_values(measure, name, evaluation, seen.questions) for evaluation in evaluations]
                for evaluations in (
                    (model.plain, *model.points.values()),
                    () if retain is None else (retain.plain, *retain.points.values()),
                    () if start is None else (start,),
                )
            )
            measureds.append(_Measured(measure, name, part, null, known[0] if known else None))
    return sorted(measureds, key=lambda item: item.rank)


def _values(
    measure: Measure, name: str, evaluation: Evaluation, asked: Sequence[str]
) -> FloatArray | None:
    """[n] the values of some questions of a set, which stand in its order."""
    seen = evaluation.sets.get(name)
    if seen is None:
        return None
    with suppress(PluginError):  # of a metric that fails: the plain summary warns of it
        values = measure.per_example(seen)
        if values is not None:
            places = iter(enumerate(seen.questions))
            return values[[next(i for i, text in places if text == item) for item in asked]]
    return None


def attacked_metrics(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    model: Attacked,
    retain: Attacked | None = None,
    start: Evaluation | None = None,
) -> tuple[AttackedMetric, ...]:
    """Every metric by question of the sets under an attack, the most telling ones first."""
    metrics: list[AttackedMetric] = []
    for item in _measured(plan, model, retain, start):
        part, null = item.means(item.model), item.means(item.retain)
        if any(value is not None for value in part[1:]):
            column = item.measure.column(item.set, roles[item.set])
            metrics.append(AttackedMetric(column, part, null or None, item.means([item.start])[0]))
    return tuple(metrics)


def largest_gain(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    model: Attacked,
    retain: Attacked | None = None,
    start: Evaluation | None = None,
) -> Gain | None:
    """The gain of the most telling metric of a forget set; None where no metric has values.

    One that only the attack makes comes first: an attack that samples leaves the greedy answers,
    and what is known of them, as they were.
    """
    able = [
        item
        for item in _measured(plan, model, retain, start)
        if roles[item.set] == "forget"
        and item.measure.metric.knows == "higher"
        and any(v is not None and np.isfinite(v).all() for v in item.model[1:])
    ]
    if not able:
        return None
    item = min(able, key=lambda item: (item.model[0] is not None, item.rank))
    plain, *points = item.model
    values = {v: of for v, of in zip(model.points, points, strict=True) if of is not None}
    variant = max(reversed(values), key=lambda v: float(values[v].mean()))  # of equals the last
    after, level = values[variant], 1 - (1 - LEVEL) / len(model.points)
    gained = after if plain is None else after - plain
    before_null, after_null, excess = None, None, None
    if retain is not None:
        before_null = item.retain[0]
        after_null = dict(zip(retain.points, item.retain[1:], strict=True))[variant]
        if after_null is not None and (before_null is None) == (plain is None):
            null = after_null if before_null is None else after_null - before_null
            excess = bootstrap_mean(gained - null * (null.mean() > 0), level=level)
    return Gain(
        variant=variant,
        label=item.measure.column(item.set, roles[item.set]).label,
        n=after.size,
        points=len(model.points),
        before=_mean(plain),
        after=float(after.mean()),
        interval=bootstrap_mean(gained, level=level),
        start=item.means([item.start])[0],
        retain_before=_mean(before_null),
        retain_after=_mean(after_null),
        excess_interval=excess,
    )


def _mean(values: FloatArray | None) -> float | None:
    return None if values is None else float(values.mean())


LEAK, BOUND = "leak_at_k", "leak_at_k_bound"
"""The metric, and the column of its bound."""
THRESHOLD, ALPHA = 0.8, 0.01
"""Defaults of both metrics."""


@dataclass(frozen=True)
class LeakCurve:
    """The probability that one of k sampled answers leaks, mean over questions."""

    variant: str
    ks: tuple[int, ...]
    """1, 2, 4 …"""
    leaks: tuple[float, ...]
    bounds: tuple[float, ...]
    """Upper bounds, each with probability 1 − alpha."""
    samples: int
    """Sampled answers to each question."""
    threshold: float
    """Least ROUGE-L recall of a leak."""
    alpha: float


def leak_curve(schema: BenchmarkSchema, by_variant: Mapping[str, Evaluation]) -> LeakCurve | None:
    """Compute leak@k of a model's sampled answers to the forget questions; None without any."""
    metric = next(
        (measure.metric for measure in schema.plan.measures if measure.name == LEAK), None
    )
    threshold = float(getattr(metric, "threshold", THRESHOLD))
    alpha = float(getattr(schema.plan.summaries.get("sampling-bounds"), "alpha", ALPHA))
    for variant, evaluation in by_variant.items():
        part = evaluation.sets.get(next(iter(schema.sets("forget")), ""))
        if part is None or part.samples is None:
            continue
        scores = part.sampled_scores()  # [n, s]
        scores = scores[~np.isnan(scores).any(axis=1)]
        count, samples = scores.shape
        ks = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
        leaks = [min(1.0, float(leak_at_k(scores, threshold, k).mean())) for k in ks if count]
        bounds = tuple(mean_bound(leak, count, alpha) for leak in leaks)
        return LeakCurve(variant, tuple(ks), tuple(leaks), bounds, samples, threshold, alpha)
    return None


def prompts(variants: Iterable[str]) -> list[str]:
    """List the variants that are prompts."""
    result: list[str] = []
    for variant in variants:
        kind = attack_class(attack_of(variant))
        if kind is not None and issubclass(kind, PromptAttack):
            result.append(variant)
    return result


def worst_prompt(
    schema: BenchmarkSchema,
    column: str,
    variants: Iterable[str],
    by_variant: Mapping[str, Evaluation],
) -> float | None:
    """Take, question by question, the prompt under which a model knows most, and their mean.

    column  that attacks are measured by

    None of fewer than two prompts, and where one was not evaluated.
    """
    wanted, measured = prompts(variants), schema.measures.get(column)
    if measured is None or measured[0].metric.knows is None or len(wanted) < 2:
        return None
    measure, name = measured
    result: dict[str, dict[str, float]] = {}
    for variant in wanted:
        part = by_variant[variant].sets.get(name) if variant in by_variant else None
        values = None if part is None else measure.per_example(part)
        if part is None or values is None:
            return None
        result[variant] = dict(zip(part.questions, values.tolist(), strict=True))
    return worst_case(result, measure.metric.knows or "higher")


def attack_class(name: str) -> type[Attack] | None:
    """The class of an attack; None where it is not installed."""
    try:
        result: type[Attack] = load("attacks", name)
    except PluginError:
        return None
    return result
