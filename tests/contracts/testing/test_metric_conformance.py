"""Every installed metric conforms; metrics with mistakes that are easily made do not."""

import random
from typing import ClassVar

import numpy as np
import pytest

from unlearnbench.api import registry
from unlearnbench.api.metric import (
    Better,
    Metric,
    MetricColumn,
    MetricInputs,
    Reads,
    Role,
    Summary,
    Values,
)
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics.extraction_strength import ExtractionStrength
from unlearnbench.testing import METRIC_CHECKS, MetricConformance, check_metric

FORGET: frozenset[Role] = frozenset({"forget"})


class TestExtractionStrength(MetricConformance):
    """A subclass as a plug-in's author writes it."""

    metric = ExtractionStrength


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_every_installed_metric_conforms(name: str) -> None:
    results = check_metric(name)
    assert [r.check.name for r in results] == [check.name for check in METRIC_CHECKS]
    wrong = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
    assert not wrong


class Good(Metric):
    """P = exp(−loss): own work."""

    label = "Good"
    roles: ClassVar[frozenset[Role]] = FORGET

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.exp(-seen.answer_loss)


class Unbounded(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return seen.answer_loss + 1


class InPlace(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        values = seen.answer_loss
        values *= -1
        return np.exp(values)


class Random(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.exp(-seen.answer_loss) * random.random()  # the mistake


class Ranked(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        worst: FloatArray = seen.answer_loss / (1 + seen.answer_loss.max())
        return 1 - worst


class Forgiving(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.nan_to_num(np.exp(-seen.answer_loss))


class Inverted(Good):
    """Own work."""

    knows: ClassVar[Better | None] = "lower"


class Underflowing(Good):
    """Own work."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"perturbed"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        own, false = np.exp(-seen.answer_loss), np.exp(-seen.perturbed_loss.mean(axis=1))
        share: FloatArray = own / (own + false)
        return share


class Undeclared(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.array([h.mean() for h in seen.tokens.by_answer(seen.tokens.hit, eos=True)])


class Lenient(Good):
    """Own work."""

    def value(self, per_example: FloatArray) -> float | None:
        return float(np.nanmean(per_example))


class Pointless(Good):
    """Own work."""

    bounds = (1.0, 0.0)


class Total(Summary):
    """Own work."""

    roles: ClassVar[frozenset[Role]] = FORGET
    names: ClassVar[tuple[str, ...]] = ("total",)

    def columns(self) -> tuple[MetricColumn, ...]:
        return tuple(MetricColumn(name, "Total", "higher") for name in self.names)

    def compute(self, of: MetricInputs) -> Values:
        return {self.names[0]: 3.0 * (of.model.values["model_utility"] or 0.0)}


def faults(kind: type[Metric | Summary]) -> dict[str, str]:
    found = check_metric(kind)
    return {r.check.name: r.outcome.seen for r in found if r.outcome.verdict == "fault"}


@pytest.mark.parametrize(
    ("kind", "check", "seen"),
    [
        (Pointless, "columns", "bounds 1 to 0"),
        (Unbounded, "values", "out of its bounds 0 to 1"),
        (InPlace, "values", "raised ValueError: output array is read-only"),
        (Random, "values", "other values when computed again"),
        (Underflowing, "values", "nan for an answer at 10000 nats, false ones at 10000"),
        (Total, "values", "total is 1.5, out of its bounds 0 to 1"),
        (Ranked, "order", "has another value when it is alone"),
        (Forgiving, "nan", "example 2 has 0, made of NaN"),
        (Lenient, "nan", "where an example has none"),
        (Inverted, "ends", "perfect 1, hopeless 1.929e-22: not lower where the model knows"),
        (Undeclared, "reads", "reads 'tokens', which `reads` does not name"),
    ],
)
def test_a_mistake_is_named(kind: type[Metric | Summary], check: str, seen: str) -> None:
    found = faults(kind)
    assert check in found, found
    assert seen in found[check]


def test_what_is_right_is_not_accused() -> None:
    assert faults(Good) == {}
