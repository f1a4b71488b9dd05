"""Gains under an attack: metrics before and after, on the same questions. Pure.

The retain model has never seen the forget rows. What it gains under the same attack is the null:
an attack that teaches, or a question that helps, raises both models alike. Where it loses, nothing
is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from unlearnbench.analysis.lasting import MEMORIZATION
from unlearnbench.api.metric import Measure, MetricColumn, Role
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.errors import PluginError
from unlearnbench.stats.bootstrap_mean import bootstrap_mean
from unlearnbench.stats.t_interval import LEVEL

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
    """Of the gain over questions; of `after` where there is no `before`."""
    start: float | None
    """The start model's plain value."""
    retain_before: float | None = None
    retain_after: float | None = None
    excess_interval: tuple[float, float] | None = None
    """Of `excess`."""
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


def attacked_metrics(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    model: Attacked,
    retain: Attacked | None = None,
    start: Evaluation | None = None,
) -> tuple[AttackedMetric, ...]:
    """Every metric by question of the sets under an attack, the most telling ones first."""
    found: list[AttackedMetric] = []
    for measure, name in sorted(_measured(plan, model), key=lambda one: _rank(one[0])):
        own = tuple(_mean(measure, one) for one in _curve(measure, name, model))
        if all(value is None for value in own[1:]):
            continue
        null = None
        if retain is not None:
            null = tuple(_mean(measure, one) for one in _curve(measure, name, retain))
        known = _at_start(measure, name, start, model)
        column = measure.column(name, roles[name])
        found.append(AttackedMetric(column, own, null, known))
    return tuple(found)


def largest_gain(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    model: Attacked,
    retain: Attacked | None = None,
    start: Evaluation | None = None,
) -> Gain | None:
    """The gain of the most telling metric of a forget set; None where no metric has values."""
    chosen = _most_telling(plan, roles, model)
    if chosen is None:
        return None
    measure, name = chosen
    plain, *points = _curve(measure, name, model)
    values = {v: one for v, one in zip(model.points, points, strict=True) if one is not None}
    variant = max(reversed(values), key=lambda v: float(values[v].mean()))  # of equals the last
    after, level = values[variant], 1 - (1 - LEVEL) / len(model.points)
    gained = after if plain is None else after - plain
    null: dict[str, FloatArray | None] = {}
    excess = None
    if retain is not None:
        before, *others = _curve(measure, name, retain)
        null = {"before": before, "after": dict(zip(retain.points, others, strict=True))[variant]}
        if null["after"] is not None and (before is None) == (plain is None):
            own = null["after"] if before is None else null["after"] - before
            excess = bootstrap_mean(gained - own * (own.mean() > 0), level=level)
    return Gain(
        variant=variant,
        label=measure.column(name, roles[name]).label,
        n=after.size,
        points=len(model.points),
        before=_plain_mean(plain),
        after=float(after.mean()),
        interval=bootstrap_mean(gained, level=level),
        start=_at_start(measure, name, start, model),
        retain_before=_plain_mean(null.get("before")),
        retain_after=_plain_mean(null.get("after")),
        excess_interval=excess,
    )


def _measured(plan: MetricPlan, model: Attacked) -> Iterator[tuple[Measure, str]]:
    there = next(iter(model.points.values())).sets
    return ((measure, name) for name in there for measure in plan.measures if name in measure.sets)


def _most_telling(
    plan: MetricPlan, roles: Mapping[str, Role], model: Attacked
) -> tuple[Measure, str] | None:
    """A measure of a forget set, larger where more is known: one that only the attack makes first.

    An attack that samples leaves the greedy answers, and what is known of them, as they were.
    """
    found: list[tuple[bool, int, Measure, str]] = []
    for measure, name in _measured(plan, model):
        if roles[name] != "forget" or measure.metric.knows != "higher":
            continue
        plain, *points = _curve(measure, name, model)
        if all(one is None or not np.isfinite(one).all() for one in points):
            continue
        found.append((plain is not None, _rank(measure), measure, name))
    return min(found, key=lambda one: one[:2])[2:] if found else None


def _rank(measure: Measure) -> int:
    return _ORDER.index(measure.name) if measure.name in _ORDER else len(_ORDER)


def _questions(name: str, model: Attacked) -> tuple[str, ...]:
    return next(iter(model.points.values())).sets[name].questions


def _curve(measure: Measure, name: str, model: Attacked) -> list[FloatArray | None]:
    """Values by question, plain and at each point, of the questions that the attack evaluates."""
    asked = _questions(name, model)
    evaluations = (model.plain, *model.points.values())
    return [_values(measure, name, one, asked) for one in evaluations]


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
            return values[[next(i for i, text in places if text == one) for one in asked]]
    return None


def _at_start(
    measure: Measure, name: str, start: Evaluation | None, model: Attacked
) -> float | None:
    asked = _questions(name, model)
    return None if start is None else _mean(measure, _values(measure, name, start, asked))


def _mean(measure: Measure, values: FloatArray | None) -> float | None:
    return None if values is None else measure.metric.value(values)


def _plain_mean(values: FloatArray | None) -> float | None:
    return None if values is None else float(values.mean())
