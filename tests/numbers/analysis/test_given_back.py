"""Gains under an attack: the same questions, the largest point, the retain model as the null."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.given_back import AttackFindings, Gain, attack_findings
from unlearnbench.analysis.text import gain_sentences
from unlearnbench.api import registry
from unlearnbench.api.benchmark import MetricUse
from unlearnbench.api.metric import Role
from unlearnbench.api.observations import Evaluation, Samples, SetEvaluation
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


def findings(
    model: Sequence[Evaluation],
    retain: Sequence[Evaluation] = (),
    start: Evaluation | None = None,
) -> AttackFindings:
    """Findings about models that were evaluated plain, and then at points 1, 2 …"""
    sequences = {"model": model, "retain": retain, "start": [start] if start else []}
    models = {
        name: {f"r@{i}" if i else "": item for i, item in enumerate(evaluations)}
        for name, evaluations in sequences.items()
        if evaluations
    }
    return attack_findings(PLAN, ROLES, models, [f"r@{i}" for i in range(1, len(model))])


def gain_of(*evaluations: Any) -> Gain:
    gain = findings(*evaluations).gain
    assert gain is not None
    return gain


def noisy(mean: float, seed: int, n: int = 30) -> list[float]:
    return [*map(float, mean + np.random.default_rng(seed).uniform(-0.05, 0.05, n))]


def test_both_sides_have_the_questions_that_the_attack_evaluates() -> None:
    plain = evaluation([0.1, 0.9, 0.2, 0.8])
    model = [plain, evaluation([0.3, 0.4], [0, 2])]
    start = evaluation([0.5, 1.0, 0.7, 1.0])
    (metric,) = findings(model, (), start).metrics
    assert metric.column.name == "probability_forget"
    assert metric.numbers("model") == pytest.approx({"": 0.15, "r@1": 0.35})
    assert metric.numbers("start") == pytest.approx({"": 0.6})
    gain = gain_of(model, (), start)
    assert gain.n == 2
    assert gain.gain == pytest.approx(0.2)
    assert (gain.excess, gain.share, gain.comes_back) == (None, None, None), "no retain model"


@pytest.mark.parametrize(("retain_after", "taught"), [((0.3, 0.5), 0.1), ((0.1, 0.1), 0.0)])
def test_a_retain_model_that_loses_subtracts_nothing(
    retain_after: tuple[float, ...], taught: float
) -> None:
    model = [evaluation([0.1, 0.2]), evaluation([0.4, 0.6])]
    retain = [evaluation([0.2, 0.4]), evaluation(retain_after)]
    gain = gain_of(model, retain, evaluation([0.9, 0.9]))
    assert gain.excess == pytest.approx(0.35 - taught)
    assert gain.share == pytest.approx((0.35 - taught) / (0.9 - 0.15))
    assert gain.excess_interval is not None
    assert gain.excess_interval[0] <= (gain.excess or 0.0) <= gain.excess_interval[1]


@pytest.mark.parametrize(("null", "comes_back"), [(0.12, True), (0.42, False), (0.6, False)])
def test_what_the_retain_model_gains_is_the_null(null: float, comes_back: bool) -> None:
    model = [evaluation(noisy(0.1, 0)), evaluation(noisy(0.4, 1))]
    retain = [evaluation(noisy(0.1, 2)), evaluation(noisy(null, 3))]
    gain = gain_of(model, retain)
    assert gain.interval is not None
    assert gain.interval[0] < gain.gain < gain.interval[1]
    assert gain.excess == pytest.approx(0.4 - null, abs=0.05)
    assert gain.comes_back is comes_back


def test_of_several_points_the_largest_one_is_taken_with_a_wider_interval() -> None:
    plain, point = evaluation(noisy(0.1, 0)), evaluation(noisy(0.3, 1))
    alone = gain_of([plain, point])
    gain = gain_of([plain, evaluation(noisy(0.2, 2)), point, evaluation(noisy(0.1, 3))])
    assert (gain.variant, gain.points, gain.after) == ("r@2", 3, alone.after)
    assert alone.interval is not None
    assert gain.interval is not None
    assert gain.interval[0] < alone.interval[0] < alone.interval[1] < gain.interval[1]


def test_a_metric_that_only_the_attack_makes_has_no_value_before() -> None:
    before = evaluation([0.1, 0.2])
    lacking = Evaluation("tofu@00", {"retain": before.sets["forget"]})
    retain = [lacking, evaluation([0.2, 0.2])]
    gain = gain_of([lacking, evaluation([0.6, 0.7])], retain)
    assert gain.before is None
    assert gain.after == pytest.approx(0.65)
    assert gain.excess == pytest.approx(0.45)


SAMPLING = metric_plan(
    ROLES,
    [
        MetricUse(name, ("forget",), name=name.replace("-", "_"))
        for name in ("rouge", "expected-best")
    ],
    {name: registry.load("metrics", name) for name in ("rouge", "expected-best")},
)


def sampled(greedy: Sequence[float], best: float | None = None) -> Evaluation:
    """A forget set with these ROUGE-L recalls, and samples of which one is best."""
    seen = replace(made_up_set(n=len(greedy)), rouge_l_recall=np.array(greedy), samples=None)
    if best is not None:
        scores = np.full((len(greedy), 16), 0.1)
        scores[:, 0] = best
        seen = replace(seen, samples=Samples((("",) * 16,) * len(greedy), scores))
    return Evaluation("tofu@00", {"forget": seen})


@pytest.mark.parametrize(("best", "comes_back"), [(0.6, False), (0.9, True)])
def test_samples_are_compared_with_the_greedy_answers(best: float, comes_back: bool) -> None:
    """What greedy answers know more than the retain model's is no gain of the attack."""
    of_model, of_retain = [*np.linspace(0.4, 0.6, 400)], [*np.linspace(0.1, 0.3, 400)]
    models = {
        "model": {"": sampled(of_model), "sampling": sampled(of_model, best)},
        "retain": {"": sampled(of_retain), "sampling": sampled(of_retain, 0.35)},
        "start": {"": sampled([1.0] * 400)},
    }
    gain = attack_findings(SAMPLING, ROLES, models, ["sampling"]).gain
    assert gain is not None
    assert (gain.before, gain.after, gain.start) == pytest.approx((0.5, best, 1.0))
    assert gain.gain == pytest.approx(best - 0.5)
    assert gain.retain_gain == pytest.approx(0.15)
    assert gain.excess == pytest.approx(best - 0.65)
    assert gain.share == pytest.approx((best - 0.65) / 0.5)
    assert gain.comes_back is comes_back
    first, second = gain_sentences(gain)
    assert f"{best:.3f} over 400 questions (ROUGE-L, forget of the greedy answers: 0.500)" in first
    assert second.startswith("It gives back" if comes_back else "No sign")


def test_without_a_number_before_nothing_is_said_to_come_back() -> None:
    lacking = Evaluation("tofu@00", {"retain": evaluation([0.1, 0.2]).sets["forget"]})
    retain = [lacking, evaluation(noisy(0.2, 0))]
    gain = gain_of([lacking, evaluation(noisy(0.6, 1))], retain)
    assert gain_sentences(gain)[1].startswith("It knows more than a model that never saw the rows")


def test_without_a_number_there_is_no_gain() -> None:
    assert findings([evaluation([0.1, 0.2]), evaluation([0.1, float("nan")])]).gain is None


NAN = float("nan")


@pytest.mark.parametrize(
    ("plain", "after"), [([0.1, NAN], [0.3, 0.4]), ([NAN, NAN], [0.3, 0.4])], ids=repr
)
def test_an_undefined_value_before_the_attack_is_no_gain(
    plain: list[float], after: list[float]
) -> None:
    found = findings([evaluation(plain), evaluation(after)], [evaluation([0.2, 0.2])] * 2)
    assert found.gain is None
    assert found.metrics[0].numbers("model") == {"": None, "r@1": pytest.approx(0.35)}


def test_a_plain_evaluation_without_what_a_metric_reads_is_no_gain() -> None:
    """A log of an earlier version has no values by token, which the attack's evaluation has."""
    plan = metric_plan(
        ROLES,
        [MetricUse("extraction-strength", ("forget",))],
        {"extraction-strength": registry.load("metrics", "extraction-strength")},
    )
    whole = evaluation([0.6, 0.7])
    bare = Evaluation(whole.profile, {"forget": replace(whole.sets["forget"], token_columns=None)})
    models = {"model": {"": bare, "r@1": whole}, "retain": {"": whole, "r@1": whole}}
    found = attack_findings(plan, ROLES, models, ["r@1"])
    assert found.metrics[0].numbers("model")[""] is None
    assert found.metrics[0].numbers("model")["r@1"] is not None
    assert found.gain is None
    swapped = {"model": models["retain"], "retain": models["model"]}
    gain = attack_findings(plan, ROLES, swapped, ["r@1"]).gain
    assert gain is not None
    assert (gain.gain, gain.retain_gain, gain.excess, gain.comes_back) == (0.0, None, None, None)


def a_set(draw: np.random.Generator, undefined: float) -> list[float]:
    values = draw.uniform(0.05, 0.95, 6)
    values[draw.random(6) < undefined] = np.nan
    return [*map(float, values)]


@pytest.mark.parametrize("seed", range(60))
def test_gains_are_those_of_defined_values_alone(seed: int) -> None:
    """Against the definition, with values missing at random before and under the attack."""
    draw = np.random.default_rng(seed)
    undefined = draw.choice([0.0, 0.03, 0.1])
    model, retain = ([a_set(draw, undefined) for _ in range(4)] for _ in range(2))
    gain = findings([*map(evaluation, model)], [*map(evaluation, retain)]).gain
    means = [float(np.mean(values)) for values in model]  # NaN where one is undefined
    points = [i for i in (1, 2, 3) if np.isfinite(means[i])]
    if not np.isfinite(means[0]) or not points:
        assert gain is None
        return
    assert gain is not None
    largest = max(points, key=lambda i: means[i])
    assert gain.variant == f"r@{largest}"
    assert gain.gain == pytest.approx(means[largest] - means[0])
    taught = float(np.mean(retain[largest])) - float(np.mean(retain[0]))
    if np.isfinite(taught):
        assert gain.excess == pytest.approx(gain.gain - max(0.0, taught))
    else:
        assert (gain.retain_gain, gain.excess, gain.comes_back, gain.share) == (None,) * 4
