"""TOFU's metrics worked by hand and at their limits; `test_published.py` has the rest."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import ArrayLike

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU, TOFU_PAPER
from unlearnbench.evaluation.summary import plan_of, summarize, truth_ratios

KEYS = [
    "model_utility", "forget_quality", "log10_forget_quality", "ks_statistic", "ks_n",
    "rouge_retain", "rouge_real_authors", "rouge_world_facts", "rouge_forget",
    "probability_retain", "probability_real_authors", "probability_world_facts",
    "probability_forget",
    "truth_ratio_retain", "truth_ratio_real_authors", "truth_ratio_world_facts",
    "truth_ratio_forget",
]  # fmt: skip


def evaluated(
    answer: ArrayLike, base: ArrayLike, perturbed: ArrayLike, rouge: ArrayLike = 1.0
) -> SetEvaluation:
    """A set from probabilities per token: [n] answer, [n] base, [n, k] perturbed."""
    with np.errstate(divide="ignore"):
        losses = [-np.log(np.asarray(p, dtype=np.float64)) for p in (answer, base, perturbed)]
    n, k = losses[2].shape
    recall = np.broadcast_to(np.asarray(rouge, dtype=np.float64), n)
    tokens = np.ones((n, k), dtype=np.int64)
    return SetEvaluation(
        questions=(),
        generated=(),
        references=(),
        answer_loss=losses[0],
        answer_tokens=tokens[:, 0],
        base_loss=losses[1],
        base_tokens=tokens[:, 0],
        perturbed_loss=losses[2],
        perturbed_tokens=tokens,
        rouge1_recall=recall * 0,
        rouge_l_recall=recall,
    )


class SetMetrics(NamedTuple):
    """TOFU's numbers of one set."""

    probability: float | None
    rouge: float | None
    truth_ratio: float | None


def set_metrics(name: SetName, seen: SetEvaluation, profile: Profile) -> SetMetrics:
    values = plan_of(profile).values({name: seen})
    return SetMetrics(*(values[f"{metric}_{name}"] for metric in SetMetrics._fields))


# Two questions: geometric means of the perturbed are 0.2 and 0.4, arithmetic ones 0.25 and 0.5;
# with the bases 0.8 and 0.1, R is 4 and 1/4, or 3.2 and 1/5.
BY_HAND = evaluated([0.5, 0.25], [0.8, 0.1], [[0.1, 0.4], [0.8, 0.2]], rouge=[1.0, 0.5])


@pytest.mark.parametrize(
    ("name", "profile", "expected"),
    [
        ("retain", TOFU, (0.375, 0.75, (3 / 4 + 0) / 2)),
        ("forget", TOFU, (0.375, 0.75, (1 / 4 + 1 / 4) / 2)),
        ("real_authors", TOFU, ((0.5 / 1.0 + 0.25 / 1.25) / 2, 0.75, 3 / 8)),
        ("world_facts", TOFU, ((0.5 / 1.0 + 0.25 / 1.25) / 2, 0.75, 3 / 8)),
        ("retain", TOFU_PAPER, (0.375, 0.75, (1 - 0.25 / 0.8) / 2)),
        ("forget", TOFU_PAPER, (0.375, 0.75, (0.25 / 0.8 + 0.1 / 0.5) / 2)),
    ],
)
def test_set_metrics_by_hand(
    name: SetName, profile: Profile, expected: tuple[float, float, float]
) -> None:
    assert set_metrics(name, BY_HAND, profile) == pytest.approx(expected, rel=1e-14)


def test_epsilons_by_hand() -> None:
    profile = replace(OPEN_UNLEARNING, truth_ratio_epsilon=0.1, options_epsilon=0.25)
    np.testing.assert_allclose(truth_ratios(BY_HAND, profile), [0.9 / 0.2, 0.2 / 0.4], rtol=1e-14)
    forget = set_metrics("forget", BY_HAND, profile).truth_ratio
    assert forget == pytest.approx((0.2 / 0.9 + 1 / (2 + 0.1)) / 2, rel=1e-14)
    facts = set_metrics("world_facts", BY_HAND, profile)
    assert facts.truth_ratio == pytest.approx((1 - 0.2 / 0.9) / 2, rel=1e-14)
    assert facts.probability == pytest.approx((0.5 / 1.25 + 0.25 / 1.5) / 2, rel=1e-14)


def test_probabilities_that_underflow_still_have_ratios() -> None:
    # exp(-2000) is 0 in float64; the ratios between such probabilities are not.
    far = replace(BY_HAND, answer_loss=np.array([2000.0]), base_loss=np.array([2000.0]),
                  perturbed_loss=np.array([[2000.0, 2001.0]]))  # fmt: skip
    options = set_metrics("real_authors", far, TOFU)
    assert options.probability == pytest.approx(1 / (1 + 1 + math.exp(-1)), rel=1e-14)
    assert options.truth_ratio == pytest.approx(1 - math.exp(-0.5), rel=1e-12)
    assert set_metrics("retain", far, TOFU_PAPER).truth_ratio == pytest.approx(
        1 - (1 + math.exp(-1)) / 2, rel=1e-12
    )
    with_floor = set_metrics("real_authors", far, OPEN_UNLEARNING)
    assert (with_floor.probability, with_floor.truth_ratio) == (0.0, 1.0)


@pytest.mark.parametrize(("base", "perturbed"), [(0.0, 5000.0), (5000.0, 0.0)])
def test_ratios_that_overflow_are_as_bad_as_can_be_on_the_forget_set(
    base: float, perturbed: float
) -> None:
    losses = np.full(2, base), np.full((2, 2), perturbed)
    extreme = replace(BY_HAND, base_loss=losses[0], perturbed_loss=losses[1])
    for profile in (TOFU, TOFU_PAPER):
        assert set_metrics("forget", extreme, profile).truth_ratio == 0
        likelier = float(base < perturbed)
        assert set_metrics("retain", extreme, profile).truth_ratio == likelier


@pytest.mark.parametrize(
    ("field", "undefined"),
    [
        ("answer_loss", {"probability"}),
        ("base_loss", {"truth_ratio"}),
        ("perturbed_loss", {"truth_ratio"}),
        ("rouge_l_recall", {"rouge"}),
        ("rouge1_recall", set[str]()),
    ],
)
@pytest.mark.parametrize("profile", [TOFU, TOFU_PAPER, OPEN_UNLEARNING], ids=lambda p: p.name)
def test_nan_makes_undefined_what_depends_on_it(
    field: str, undefined: set[str], profile: Profile
) -> None:
    values = getattr(BY_HAND, field).copy()
    values[(1, *[0] * (values.ndim - 1))] = math.nan
    broken = replace(BY_HAND, **{field: values})
    for name in SETS:
        expected = set(undefined)
        if name in ("real_authors", "world_facts") and field == "perturbed_loss":
            expected.add("probability")
        metrics = set_metrics(name, broken, profile)._asdict()
        assert {key for key, value in metrics.items() if value is None} == expected


def test_infinite_losses_are_undefined_only_where_nothing_can_be_said() -> None:
    endless = replace(BY_HAND, answer_loss=np.full(2, np.inf), base_loss=np.full(2, np.inf),
                      perturbed_loss=np.full((2, 2), np.inf))  # fmt: skip
    assert set_metrics("retain", endless, TOFU) == (0.0, 0.75, None)
    assert set_metrics("real_authors", endless, TOFU) == (None, 0.75, None)


def evaluation_of(one: SetEvaluation, profile: Profile = TOFU) -> Evaluation:
    return Evaluation(profile=profile.id, sets=dict.fromkeys(SETS, one))


def test_summary_keys_and_their_order() -> None:
    summary = summarize(evaluation_of(BY_HAND), evaluation_of(BY_HAND), TOFU)
    assert list(summary)[: len(KEYS)] == KEYS, "TOFU's, and then all others"
    assert None not in [summary[key] for key in KEYS]
    assert summary["ks_n"] == 2
    # Retain set 3/8 · 3/4 · 3/8; facts twice 0.35 · 3/4 · 3/8.
    parts = [0.375, 0.75, 0.375, *[0.35, 0.75, 0.375] * 2]
    assert summary["model_utility"] == pytest.approx(9 / sum(1 / part for part in parts), rel=1e-14)


def test_different_profiles_do_not_compare() -> None:
    ours, other = evaluation_of(BY_HAND), evaluation_of(BY_HAND, TOFU_PAPER)
    with pytest.raises(EvaluationError, match=r"tofu@.*retain model's tofu-paper@.*do not compare"):
        summarize(ours, other, TOFU)
    with pytest.raises(EvaluationError, match=r"tofu@.*summarised by tofu-paper@"):
        summarize(ours, None, TOFU_PAPER)
