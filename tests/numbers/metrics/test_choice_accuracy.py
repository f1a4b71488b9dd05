"""Accuracy of multiple choice, by hand; and metrics of questions with unequally many options."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from unlearnbench.api import registry
from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.metrics.choice_accuracy import ChoiceAccuracy, Per
from unlearnbench.metrics.option_entropy import OptionEntropy
from unlearnbench.testing.metric_checks import taken

from .conftest import Observe

# One question a row: mean losses, tokens, accuracy by the mean and by the sum.
CASES = (
    ((1.0, 2.0, 3.0), (4, 4, 4), 1.0, 1.0),
    ((2.0, 1.0, 3.0), (4, 4, 4), 0.0, 0.0),
    ((1.0, 1.5, 3.0), (4, 2, 4), 1.0, 0.0),  # 4 nats against 3: a short option is the likelier
    ((2.0, 1.5, 3.0), (2, 4, 4), 0.0, 1.0),
    ((1.0, 1.0, 3.0), (4, 4, 4), 0.5, 0.5),
    ((1.0, 1.0, 1.0), (4, 4, 4), 1 / 3, 1 / 3),
    ((2.0, 1.0, 1.0), (4, 4, 4), 0.0, 0.0),
)


@pytest.mark.parametrize(("per", "column"), [("token", 2), ("option", 3)])
def test_the_likeliest_option_is_chosen(observe: Observe, per: Per, column: int) -> None:
    losses, tokens = np.array([c[0] for c in CASES]), np.array([c[1] for c in CASES])
    seen = observe(
        [[1.0]] * len(CASES),
        answer_loss=losses[:, 0],
        answer_tokens=tokens[:, 0],
        perturbed_loss=losses[:, 1:],
        perturbed_tokens=tokens[:, 1:],
    )
    found = ChoiceAccuracy(per=per).per_example(seen)
    np.testing.assert_array_equal(found, [case[column] for case in CASES])


# lm-evaluation-harness by hand: log-probabilities of options in order, the answer's place, its
# acc, acc_norm and acc_bytes. "größe" has 5 characters and 7 bytes.
ORDERED = (
    (("größe", "ab", "abc"), (-6.0, -2.5, -3.0), 0, 0.0, 0.0, 1.0),
    (("größe", "ab", "abc"), (-6.0, -2.5, -3.0), 1, 1.0, 0.0, 0.0),
    (("größe", "ab", "abc"), (-6.0, -2.5, -2.7), 2, 0.0, 1.0, 0.0),
    (("aa", "aa", "bbb"), (-2.0, -2.0, -9.0), 0, 1.0, 1.0, 1.0),  # of equals the first is chosen
    (("aa", "aa", "bbb"), (-2.0, -2.0, -9.0), 1, 0.0, 0.0, 0.0),
)


@pytest.mark.parametrize(("per", "column"), [("option", 3), ("character", 4), ("byte", 5)])
def test_options_in_order_are_chosen_as_in_lm_eval(observe: Observe, per: Per, column: int) -> None:
    for options, logprobs, i, *expected in ORDERED:
        others = [-value / 2 for j, value in enumerate(logprobs) if j != i]  # of two tokens each
        seen = observe(
            [[-logprobs[i] / 2] * 2],
            answer_loss=np.array([-logprobs[i] / 2]),
            answer_tokens=np.array([2]),
            perturbed_loss=np.array([others]),
            perturbed_tokens=np.full((1, 2), 2),
            options=(options,),
            answer_index=np.array([i]),
        )
        assert ChoiceAccuracy(per=per).per_example(seen) == [expected[column - 3]]


def test_the_entropy_over_options_is_scipys(observe: Observe) -> None:
    logprobs = np.array([[-1.0, -2.0, -4.0], [-3.0, -3.0, -3.0], [-0.1, -50.0, -50.0]])
    seen = observe(
        [[1.0]] * 3,
        answer_loss=-logprobs[:, 0],
        perturbed_loss=-logprobs[:, 1:],
        perturbed_tokens=np.ones((3, 2), dtype=np.int64),
    )
    p = np.exp(logprobs) / np.exp(logprobs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        OptionEntropy().per_example(seen), scipy.stats.entropy(p, axis=1) / np.log(3), atol=1e-12
    )


READ_OPTIONS = [
    kind()
    for name in registry.names("metrics")
    if issubclass(kind := registry.load("metrics", name), Metric) and "perturbed" in kind.reads
]


def padded(seen: SetEvaluation, count: int) -> SetEvaluation:
    """The set with `count` options at most, and behind them none."""
    loss, tokens = seen.perturbed_loss.copy(), seen.perturbed_tokens.copy()
    loss[:, count:], tokens[:, count:] = np.nan, 0
    return replace(seen, perturbed_loss=loss, perturbed_tokens=tokens)


def joined(one: SetEvaluation, other: SetEvaluation) -> SetEvaluation:
    """The examples of one set, then those of the other; without values by token."""
    own: dict[str, Any] = {"token_columns": None, "samples": None, "values": {}}
    own |= {"word_rule": one.word_rule, "compressed_bytes": None, "places": None}
    own |= {"text_values": None}
    for name in vars(one).keys() - own.keys():
        mine, theirs = getattr(one, name), getattr(other, name)
        is_text = isinstance(mine, tuple)
        own[name] = (*mine, *theirs) if is_text else np.concatenate([mine, theirs])
    return SetEvaluation(**own)


@pytest.mark.parametrize("metric", READ_OPTIONS, ids=lambda metric: type(metric).__name__)
def test_options_that_a_question_does_not_have_change_nothing(metric: Metric) -> None:
    three, two = made_up_set(seed=1), made_up_set(seed=2)
    both = joined(three, padded(two, 2))
    fewer = replace(
        two,
        perturbed_loss=two.perturbed_loss[:, :2],
        perturbed_tokens=two.perturbed_tokens[:, :2],
    )
    wanted = [*metric.per_example(three), *metric.per_example(fewer)]
    np.testing.assert_allclose(metric.per_example(both), wanted, rtol=1e-12)
    unknown = both.perturbed_loss.copy()
    unknown[0, 0] = np.nan
    broken = metric.per_example(replace(both, perturbed_loss=unknown))
    assert np.isnan(broken[0]), "undefined, not left out"
    np.testing.assert_array_equal(broken[1:], metric.per_example(both)[1:])
    assert np.isfinite(metric.per_example(taken(replace(both, token_columns=None), [7]))).all()
