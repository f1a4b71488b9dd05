"""Scores of samples against brute force: every draw of k, every distribution in the band."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from unlearnbench.stats.sampled_scores import (
    deviation_bound,
    expectation_bound,
    expected_best,
    leak_at_k,
    mean_bound,
    probability_bound,
    spread_score,
    verbatim_leak,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_the_best_of_k_is_the_mean_over_all_draws(k: int) -> None:
    scores = RNG.random((3, 7))
    for row, found in zip(scores, expected_best(scores, k), strict=True):
        assert found == pytest.approx(np.mean([max(draw) for draw in combinations(row, k)]))


@pytest.mark.parametrize(("n", "c", "k"), [(20, 0, 4), (20, 3, 1), (20, 3, 4), (20, 17, 4)])
def test_a_leak_is_counted_as_pass_at_k(n: int, c: int, k: int) -> None:
    scores = np.where(np.arange(n) < c, 0.5, 0.49)
    wanted = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert leak_at_k(scores, 0.5, k) == pytest.approx(wanted, abs=1e-12)


def test_a_sample_without_a_score_leaves_the_question_without() -> None:
    scores = np.array([[0.1, np.nan, 0.9], [0.2, 0.4, 0.6]])
    found = (
        *(expected_best(scores, 2), leak_at_k(scores, 0.5, 2), spread_score(scores, 2)),
        *(expectation_bound(scores, 0.01), deviation_bound(scores, 0.01)),
    )
    for values in found:
        assert np.isnan(values).tolist() == [True, False]


@pytest.mark.parametrize(("count", "n"), [(0, 20), (3, 20), (19, 20), (20, 20), (0, 8000)])
def test_at_the_bound_so_few_successes_have_probability_alpha(count: int, n: int) -> None:
    bound = probability_bound(count, n, 0.01)
    if count == n:
        assert bound == 1
    else:
        assert binom.cdf(count, n, bound) == pytest.approx(0.01)


def test_unequal_probabilities_are_bounded_by_that_of_their_mean() -> None:
    """Half of the questions always leak, the others never: the count has no spread at all."""
    for chances in ([1.0, 0.0], [0.9, 0.1, 0.0], [0.3, 0.02]):
        draws = (
            np.random.default_rng(1).random((4000, len(chances), 10)) < np.array(chances)[:, None]
        )
        counts, n = draws.sum(axis=(1, 2)), 10 * len(chances)
        known = {int(c): probability_bound(int(c), n, 0.05) for c in np.unique(counts)}
        missed = np.mean([known[int(c)] < np.mean(chances) for c in counts])
        assert missed <= 0.06


def test_a_bound_of_a_mean_solves_its_equation() -> None:
    assert mean_bound(0.0, 400, 0.01) == pytest.approx(1 - 0.01 ** (1 / 400))
    assert mean_bound(1.0, 400, 0.01) == 1
    p, q = 0.3, mean_bound(0.3, 50, 0.01)
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert 50 * kl == pytest.approx(math.log(100))
    assert q < p + math.sqrt(math.log(100) / 100), "tighter than Hoeffding's simpler form"


def test_the_expectation_is_bounded_by_the_band() -> None:
    """A fine sum over the band, as the paper's code has it."""
    scores = RNG.random((4, 30)) ** 2
    width = math.sqrt(math.log(1 / 0.05) / 60)
    steps = np.linspace(0, 1, 20_001)[:-1]
    for row, found in zip(scores, expectation_bound(scores, 0.05), strict=True):
        low = np.maximum((row[:, None] <= steps).mean(axis=0) - width, 0)
        assert found == pytest.approx(1 - low.mean(), abs=1e-4)
        assert found > row.mean()
    assert expectation_bound(np.ones(5), 0.05) == 1
    # Very many samples leave next to nothing open.
    many = RNG.random(100_000)
    assert expectation_bound(many, 0.01) == pytest.approx(0.5, abs=0.01)
    assert deviation_bound(many, 0.01) == pytest.approx(math.sqrt(1 / 12), abs=0.015)


def test_the_deviation_is_bounded_by_the_widest_distribution_in_the_band() -> None:
    """By a linear program over the weights of a grid."""
    scores = np.round(np.random.default_rng(3).beta(2, 6, 60), 2)
    width = math.sqrt(math.log(2 / 0.3) / 120)
    steps = np.linspace(0, 1, 101)
    seen = (scores[:, None] <= steps + 1e-9).mean(axis=0)
    below = np.tril(np.ones((101, 101)))
    rows = np.concatenate([below, -below])
    most = np.concatenate([np.minimum(seen + width, 1), -np.maximum(seen - width, 0)])
    target = -((steps - scores.mean()) ** 2)
    widest = linprog(target, rows, most, np.ones((1, 101)), [1.0], method="highs")
    assert deviation_bound(scores, 0.3) == pytest.approx(
        math.sqrt(-float(widest.fun or 0)), abs=0.01
    )
    assert scores.std() < deviation_bound(scores, 0.3) < 0.45
    assert deviation_bound(np.array([0.0, 1.0]), 0.05) == 0.5


@pytest.mark.parametrize("a", [0.3, 1.0])
def test_bounds_hold_as_often_as_they_promise(a: float) -> None:
    scores = np.random.default_rng(2).beta(a, 2, (2000, 25))
    mean = a / (a + 2)
    deviation = math.sqrt(mean * (1 - mean) / (a + 3))
    assert (expectation_bound(scores, 0.1) < mean).mean() <= 0.1
    assert (deviation_bound(scores, 0.1) < deviation).mean() <= 0.1


def test_the_spread_is_added_to_the_mean() -> None:
    assert spread_score(np.array([0.0, 1.0]), 2) == pytest.approx(1.5)
    assert spread_score(np.full(4, 0.25), 2) == pytest.approx(0.25)


def test_a_text_is_repeated_as_often_as_it_is_probable() -> None:
    losses = np.array([0.0, math.log(2), 700.0, 1e4, math.inf, math.nan])
    with np.errstate(divide="ignore"):
        found = verbatim_leak(losses, 3)
    assert found[:2].tolist() == [1.0, pytest.approx(1 - 0.5**3)]
    assert found[2] == pytest.approx(3 * math.exp(-700)), "and not 0"
    assert found[3:5].tolist() == [0.0, 0.0]
    assert math.isnan(found[5])
