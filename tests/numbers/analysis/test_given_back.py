"""Gains under an attack: the same questions, the largest point, the retain model as the null."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.given_back import Attacked, Gain, attacked_metrics, largest_gain
from unlearnbench.api import registry
from unlearnbench.api.benchmark import MetricUse
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.config.metric_plan import metric_plan
from unlearnbench.testing import made_up_set

ROLES: Mapping[str, Role] = {"retain": "retain", "forget": "forget"}
PLAN = metric_plan(
    ROLES,
    [MetricUse("probability", ("retain", "forget"))],
    {"probability": registry.load("metrics", "probability")},
)


def evaluation(values: Sequence[float], questions: Sequence[int] | None = None) -> Evaluation:
    """A forget set with these probabilities of its answers; numbers stand for questions."""
    n = len(values)
    numbers = questions or range(n)
    seen = replace(
        made_up_set(n=n),
        questions=tuple(f"question {i}" for i in numbers),
        answer_loss=-np.log(np.array(values)),
    )
    sets: dict[str, SetEvaluation] = {"forget": seen}
    return Evaluation("tofu@00", sets)


def gain_of(model: Attacked, *others: Any) -> Gain:
    found = largest_gain(PLAN, ROLES, model, *others)
    assert found is not None
    return found


def noisy(mean: float, seed: int, n: int = 30) -> list[float]:
    return [*map(float, mean + np.random.default_rng(seed).uniform(-0.05, 0.05, n))]


def test_both_sides_have_the_questions_that_the_attack_evaluates() -> None:
    plain = evaluation([0.1, 0.9, 0.2, 0.8])
    model = Attacked(plain, {"a": evaluation([0.3, 0.4], [0, 2])})
    start = evaluation([0.5, 1.0, 0.7, 1.0])
    (one,) = attacked_metrics(PLAN, ROLES, model, None, start)
    assert one.column.name == "probability_forget"
    assert one.retain is None
    assert one.model == pytest.approx((0.15, 0.35))
    assert one.start == pytest.approx(0.6)
    gain = gain_of(model, None, start)
    assert gain.n == 2
    assert gain.gain == pytest.approx(0.2)
    assert (gain.excess, gain.share, gain.comes_back) == (None, None, None), "no retain model"


@pytest.mark.parametrize(("retain_after", "taught"), [((0.3, 0.5), 0.1), ((0.1, 0.1), 0.0)])
def test_a_retain_model_that_loses_subtracts_nothing(
    retain_after: tuple[float, ...], taught: float
) -> None:
    model = Attacked(evaluation([0.1, 0.2]), {"a": evaluation([0.4, 0.6])})
    retain = Attacked(evaluation([0.2, 0.4]), {"a": evaluation(retain_after)})
    gain = gain_of(model, retain, evaluation([0.9, 0.9]))
    assert gain.excess == pytest.approx(0.35 - taught)
    assert gain.share == pytest.approx((0.35 - taught) / (0.9 - 0.15))
    assert gain.excess_interval is not None
    assert gain.excess_interval[0] <= (gain.excess or 0.0) <= gain.excess_interval[1]


@pytest.mark.parametrize(("null", "comes_back"), [(0.12, True), (0.42, False), (0.6, False)])
def test_what_the_retain_model_gains_is_the_null(null: float, comes_back: bool) -> None:
    model = Attacked(evaluation(noisy(0.1, 0)), {"a": evaluation(noisy(0.4, 1))})
    retain = Attacked(evaluation(noisy(0.1, 2)), {"a": evaluation(noisy(null, 3))})
    gain = gain_of(model, retain)
    assert gain.interval is not None
    assert gain.interval[0] < gain.gain < gain.interval[1]
    assert gain.excess == pytest.approx(0.4 - null, abs=0.05)
    assert gain.comes_back is comes_back


def test_of_several_points_the_largest_one_is_taken_with_a_wider_interval() -> None:
    plain, point = evaluation(noisy(0.1, 0)), evaluation(noisy(0.3, 1))
    alone = gain_of(Attacked(plain, {"r@3": point}))
    points = {"r@1": evaluation(noisy(0.2, 2)), "r@3": point, "r@9": evaluation(noisy(0.1, 3))}
    gain = gain_of(Attacked(plain, points))
    assert (gain.variant, gain.points, gain.after) == ("r@3", 3, alone.after)
    assert alone.interval is not None
    assert gain.interval is not None
    assert gain.interval[0] < alone.interval[0] < alone.interval[1] < gain.interval[1]


def test_a_metric_that_only_the_attack_makes_has_no_value_before() -> None:
    before = evaluation([0.1, 0.2])
    lacking = Evaluation("tofu@00", {"retain": before.sets["forget"]})
    retain = Attacked(lacking, {"a": evaluation([0.2, 0.2])})
    gain = gain_of(Attacked(lacking, {"a": evaluation([0.6, 0.7])}), retain)
    assert gain.before is None
    assert gain.after == pytest.approx(0.65)
    assert gain.excess == pytest.approx(0.45)


def test_without_a_number_there_is_no_gain() -> None:
    nothing = evaluation([0.1, float("nan")])
    model = Attacked(evaluation([0.1, 0.2]), {"a": nothing})
    assert largest_gain(PLAN, ROLES, model) is None
