"""Every installed metric conforms; metrics with mistakes that are easily made do not."""

from __future__ import annotations

import random
from collections.abc import Set
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import ConfigDict

from unlearnbench.api import registry
from unlearnbench.api.metric import (
    Better,
    Compared,
    Metric,
    MetricColumn,
    MetricInputs,
    Reads,
    Role,
    Summary,
    Values,
)
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.errors import PluginError
from unlearnbench.metrics.extraction_strength import ExtractionStrength
from unlearnbench.metrics.model_utility import ModelUtility
from unlearnbench.testing import METRIC_CHECKS, MetricConformance, check_metric

FORGET: frozenset[Role] = frozenset({"forget"})


class TestExtractionStrength(MetricConformance):
    """A subclass as a plug-in's author writes it."""

    metric = ExtractionStrength


class TestModelUtility(MetricConformance):
    """A subclass with settings."""

    metric = "model-utility"
    settings = {"of": ("rouge_retain",)}  # noqa: RUF012  # as short as authors write it


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


class Raising(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return seen.answer_losses  # type: ignore[attr-defined, no-any-return]  # pyright: ignore


class Half(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> Any:
        return np.exp(-seen.answer_loss).astype(np.float32)


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
        worst: FloatArray = seen.answer_loss / seen.answer_loss.max()
        return 1 - worst


class Cumulative(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.exp(-np.maximum.accumulate(seen.answer_loss))


class Forgiving(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.nan_to_num(np.exp(-seen.answer_loss))


class Inverted(Good):
    """Own work."""

    knows: ClassVar[Better | None] = "lower"


class Short(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.exp(-seen.answer_loss) / 2


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


class Mutable(Good):
    """Own work."""

    model_config = ConfigDict(frozen=False)
    share: float = 0.5


class Undocumented(Good):
    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.exp(-seen.answer_loss)


class Total(Summary):
    """Own work."""

    roles: ClassVar[frozenset[Role]] = FORGET
    names: ClassVar[tuple[str, ...]] = ("total",)

    def columns(self) -> tuple[MetricColumn, ...]:
        return tuple(MetricColumn(name, "Total", "higher") for name in self.names)

    def compute(self, of: MetricInputs) -> Values:
        return {"total": of.model.values["model_utility"]}


class Careless(Total):
    """Own work."""

    def compute(self, of: MetricInputs) -> Values:
        seen = of.model.sets["forget"]
        return {"total": float(np.exp(-np.nanmean(seen.answer_loss)))}


class Relative(Total):
    """Own work."""

    def compute(self, of: MetricInputs) -> Values:
        return {"total": None if of.retain is None else of.retain.values["rouge_forget"]}


class Never(Total):
    """Own work."""

    names: ClassVar[tuple[str, ...]] = ("total", "more")

    def compute(self, of: MetricInputs) -> Values:
        return {"total": of.model.values["rouge_forget"]}


class Capital(Total):
    """Own work."""

    names: ClassVar[tuple[str, ...]] = ("Total",)


class Taken(Total):
    """Own work."""

    names: ClassVar[tuple[str, ...]] = ("model_utility",)


class Infinite(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return np.where(np.arange(len(seen.answer_loss)) == 1, np.inf, np.exp(-seen.answer_loss))


class Absent(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> Any:
        del seen


class Lenient(Good):
    """Own work."""

    def value(self, per_example: FloatArray) -> float | None:
        return float(np.nanmean(per_example))


class Steep(Good):
    """Own work."""

    bounds = (0.0, 100.0)

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return 100 - seen.answer_loss * 2


class Quiet(Good):
    """Own work."""

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        answered = np.array([bool(text) for text in seen.generated or [""] * len(seen.answer_loss)])
        values: FloatArray = np.exp(-seen.answer_loss) * answered
        return values


class Pointless(Good):
    """Own work."""

    bounds = (1.0, 0.0)


class Nameless(Total):
    """Own work."""

    def columns(self) -> tuple[MetricColumn, ...]:
        return (MetricColumn("total", " ", "higher"),)


class Beyond(Total):
    """Own work."""

    def columns(self) -> tuple[MetricColumn, ...]:
        return (MetricColumn("total", "Total", "higher", (0.0, 0.5)),)

    def compute(self, of: MetricInputs) -> Values:
        return {"total": of.model.values["rouge_forget"]}


class Counting(Total):
    """Own work."""

    def compute(self, of: MetricInputs) -> Values:
        del of
        return {"total": random.random()}  # the mistake


class Constant(Total):
    """Own work."""

    def compute(self, of: MetricInputs) -> Values:
        del of
        return {"total": 0.5}


class Guessing(Total):
    """Own work."""

    def compute(self, of: MetricInputs) -> Values:
        known = of.model.values["rouge_forget"]
        return {"total": 0.5 if known is None else known}


class Boastful(Total):
    """Own work."""

    relative_to: ClassVar[frozenset[Compared]] = frozenset({"start"})
    after: ClassVar[Set[str]] = frozenset({"forget-quality"})

    def compute(self, of: MetricInputs) -> Values:
        return {"total": of.model.values["rouge_forget"]}


class Handle(Good):
    """Own work."""

    shown: Any = None

    def __getstate__(self) -> Any:
        raise TypeError("a handle stays where it is")


class Forgetful(Good):
    """Own work."""

    share: float = 0.25

    def __reduce__(self) -> Any:
        return Forgetful, (), {"__dict__": {"share": 0.5}, "__pydantic_fields_set__": {"share"}}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        object.__setattr__(self, "__dict__", state["__dict__"])


def faults(kind: type[Metric | Summary]) -> dict[str, str]:
    found = check_metric(kind)
    return {r.check.name: r.outcome.seen for r in found if r.outcome.verdict == "fault"}


@pytest.mark.parametrize(
    ("kind", "check", "seen"),
    [
        (Raising, "values", "raised AttributeError: 'SetEvaluation' object has no attribute"),
        (Half, "values", "an array of float32, not float64"),
        (Unbounded, "values", "out of its bounds 0 to 1"),
        (InPlace, "read-only", "changes an array of the observations in place"),
        (Random, "repeatable", "other values when computed again"),
        (Ranked, "other-examples", "has another value when it is alone"),
        (Cumulative, "order", "values change with the examples' order"),
        (Forgiving, "nan", "example 2 has 0, made of NaN"),
        (Inverted, "ends", "perfect 1, hopeless 1.929e-22: not lower where the model knows"),
        (Short, "ends", "a perfect model is not at 1, the end of the bounds"),
        (Underflowing, "extremes", "nan for an answer at 10000 nats, false ones at 10000"),
        (Undeclared, "reads", "reads 'tokens', which `reads` does not name"),
        (Mutable, "value", "share can be changed"),
        (Undocumented, "value", "no docstring"),
        (Total, "after", "reads a column of 'model-utility', which `after` does not name"),
        (Careless, "undefined", "raised KeyError: 'forget'"),
        (Careless, "nan", "total is "),
        (Relative, "undefined", "undefined without the retain model, which `relative_to` does not"),
        (Never, "values", "more: never a number"),
        (Capital, "columns", "its column is called 'Total'; use small letters"),
        (Taken, "columns", "model_utility is a column of 'model-utility' too"),
        (Infinite, "values", "example 1 has inf on ordinary observations"),
        (Absent, "values", "returned None; it must return a float64 array [n]"),
        (Lenient, "nan", "where an example has none"),
        (Steep, "extremes", "out of its bounds 0 to 100"),
        (Quiet, "reads", "has other values without 'generated', which `reads` does not name"),
        (Pointless, "columns", "its bounds are 1 to 0"),
        (Nameless, "columns", "total has no label"),
        (Beyond, "values", "out of its bounds 0 to 0.5"),
        (Counting, "repeatable", "other numbers when computed again"),
        (Constant, "undefined", "total is 0.5 without any set and column"),
        (Guessing, "nan", "total is 0.5 where every column is undefined"),
        (Boastful, "undefined", "without the start model, named in `relative_to`"),
        (Boastful, "after", "`after` names 'forget-quality', of which no column is read"),
        (Handle, "value", "cannot be sent to another process: a handle stays where it is"),
        (Forgetful, "value", "another metric comes back from a copy by pickle"),
    ],
)
def test_a_mistake_is_named(kind: type[Metric | Summary], check: str, seen: str) -> None:
    found = faults(kind)
    assert check in found, found
    assert seen in found[check]


def test_what_is_right_is_not_accused() -> None:
    assert faults(Good) == {}


def test_an_unknown_check_or_a_missing_setting_is_one_line() -> None:
    with pytest.raises(PluginError, match=r"unknown check 'ordr'; did you mean 'order'\?"):
        check_metric(Good, only=["ordr"])
    with pytest.raises(PluginError, match="ModelUtility cannot be made: of: expected"):
        check_metric(ModelUtility, {"of": 3})


def test_checks_that_build_on_a_failed_one_are_not_run() -> None:
    values, order = check_metric(Raising, only=["order"])
    assert (values.check.name, values.outcome.verdict) == ("values", "fault")
    assert (order.outcome.verdict, order.outcome.seen) == ("not run", "'values' failed")
