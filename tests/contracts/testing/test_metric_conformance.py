"""Every installed metric conforms; metrics with mistakes that are easily made do not."""

import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from unlearnbench.api import registry
from unlearnbench.api.metric import (
    Metric,
    MetricColumn,
    MetricInputs,
    Role,
    Summary,
    Values,
)
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics.extraction_strength import ExtractionStrength
from unlearnbench.testing import SUITES, MetricConformance, check_plugin

FORGET: frozenset[Role] = frozenset({"forget"})


class TestExtractionStrength(MetricConformance):
    """A subclass as a plug-in's author writes it."""

    metric = ExtractionStrength


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_every_installed_metric_conforms(name: str) -> None:
    results = check_plugin("metrics", name)
    assert [r.check.name for r in results] == [check.name for check in SUITES["metrics"]]
    wrong = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
    assert not wrong


class Good(Metric):
    """P = exp(−loss): own work."""

    label = "Good"
    roles: ClassVar[frozenset[Role]] = FORGET

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.exp(-seen.answer_loss)


def metric(
    per_example: Callable[[Any, Any], object] = Good.per_example, **members: object
) -> type[Good]:
    """Good, with another function of the observations, or other declarations."""
    body = {"__doc__": "Own work.", "__module__": __name__, "per_example": per_example}
    mistaken: Any = type(Good)
    kind: type[Good] = mistaken("Mistaken", (Good,), {**body, **members})
    return kind


def in_place(_: Good, seen: SetEvaluation) -> FloatArray:
    values = seen.answer_loss
    values *= -1
    return np.exp(values)


def underflowing(_: Good, seen: SetEvaluation) -> FloatArray:
    own, false = np.exp(-seen.answer_loss), np.exp(-seen.perturbed_loss.mean(axis=1))
    share: FloatArray = own / (own + false)
    return share


def undeclared(_: Good, seen: SetEvaluation) -> FloatArray:
    return np.array([h.mean() for h in seen.tokens.by_answer(seen.tokens.hit, eos=True)])


def without_nan(_: Good, per_example: FloatArray) -> float:
    return float(np.nanmean(per_example))


MISTAKES: list[tuple[type[Metric | Summary], str, str]] = [
    (metric(bounds=(1.0, 0.0)), "columns", "bounds 1 to 0"),
    (metric(lambda _, seen: seen.answer_loss + 1), "values", "out of its bounds 0 to 1"),
    (metric(in_place), "values", "raised ValueError: output array is read-only"),
    (
        metric(lambda _, seen: np.exp(-seen.answer_loss) * random.random()),
        *("values", "other values when computed again"),
    ),
    (
        metric(underflowing, reads=frozenset({"perturbed"})),
        *("values", "nan for an answer at 10000 nats, false ones at 10000"),
    ),
    (metric(undeclared), "values", "no values by token, only means"),
    (
        metric(lambda _, seen: 1 - seen.answer_loss / (1 + seen.answer_loss.max())),
        *("order", "has another value when it is alone"),
    ),
    (metric(lambda _, seen: np.nan_to_num(np.exp(-seen.answer_loss))), "nan", "0, made of NaN"),
    (
        metric(value=without_nan),
        *("nan", "where an example has none"),
    ),
    (metric(knows="lower"), "ends", "hopeless 1.929e-22: not lower where the model knows"),
]


class Total(Summary):
    """Own work."""

    roles: ClassVar[frozenset[Role]] = FORGET
    names: ClassVar[tuple[str, ...]] = ("total",)

    def columns(self) -> tuple[MetricColumn, ...]:
        return tuple(MetricColumn(name, "Total", "higher") for name in self.names)

    def compute(self, of: MetricInputs) -> Values:
        return {self.names[0]: 3.0 * (of.model.values["model_utility"] or 0.0)}


def faults(kind: type[Metric | Summary]) -> dict[str, str]:
    found = check_plugin("metrics", kind)
    return {r.check.name: r.outcome.seen for r in found if r.outcome.verdict == "fault"}


@pytest.mark.parametrize(
    ("kind", "check", "seen"),
    [*MISTAKES, (Total, "values", "total is 1.5, out of its bounds 0 to 1")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_named(kind: type[Metric | Summary], check: str, seen: str) -> None:
    found = faults(kind)
    assert check in found, found
    assert seen in found[check]


def test_what_is_right_is_not_accused() -> None:
    assert faults(Good) == {}
