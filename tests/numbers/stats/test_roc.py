"""Areas under ROC curves against their definition, over all pairs."""

import numpy as np
import pytest

from unlearnbench.stats.roc import (
    auc,
    auc_interval,
    auc_score_interval,
    best_cut,
    mean_auc_interval,
    true_positive_rate,
)


def test_auc_is_the_share_of_pairs_with_ties_as_halves() -> None:
    rng = np.random.default_rng(0)
    members, others = (rng.integers(0, 9, n).astype(float) for n in (50, 30))
    pairs = [(other > member) + (other == member) / 2 for member in members for other in others]
    assert auc(members, others) == pytest.approx(np.mean(pairs), rel=1e-14)
    assert auc(others, members) == pytest.approx(1 - np.mean(pairs), rel=1e-14)
    assert auc(members, members) == 0.5
    assert auc(np.zeros(3), np.ones(4)) == 1
    assert auc(np.array([0.0, np.nan]), others) is None
    assert auc(members, np.empty(0)) is None


def test_true_positives_with_at_most_one_false_one_in_a_hundred() -> None:
    others = np.arange(200.0)
    assert true_positive_rate(np.array([-1.0, 1.9, 2.0, 50.0]), others) == 0.5
    assert true_positive_rate(np.array([-1.0, 0.0, 1.0]), others[:40]) == pytest.approx(1 / 3)
    assert true_positive_rate(others, others) == 0.01
    assert true_positive_rate(others, np.full(200, 7.0)) == 7 / 200
    assert true_positive_rate(others, others, 1.0) == 1
    assert true_positive_rate(others, np.array([np.nan])) is None


def test_interval_of_the_area_is_that_of_the_normal_approximation() -> None:
    rng = np.random.default_rng(1)
    members, others = rng.normal(0, 1, 400), rng.normal(0, 1, 400)
    found = auc_interval(members, others)
    assert found is not None
    low, high = found
    area = auc(members, others)
    assert area is not None
    assert low < area < high
    # Hanley and McNeil 1982 at an area of ½: √((m + k + 1) / 12 m k).
    assert (high - low) / 2 / 1.96 == pytest.approx(np.sqrt(801 / (12 * 400 * 400)), rel=0.06)
    assert auc_interval(members, others) == found, "drawn from a seed"
    # Draws of scores that are apart give nothing but 1, however few they are.
    assert auc_interval(np.zeros(5), np.ones(5)) == auc_score_interval(1.0, 5, 5)
    assert auc_interval(np.zeros(50), np.ones(50)) == auc_score_interval(1.0, 50, 50)
    few = rng.normal(size=6), rng.normal(1, 1, 29)
    area = auc(*few)
    assert area is not None
    assert auc_interval(*few) == auc_score_interval(area, 6, 29)
    assert mean_auc_interval([few] * 3) == pytest.approx(auc_score_interval(area, 6, 29))
    assert auc_interval(np.array([np.nan]), others) is None


@pytest.mark.parametrize(("area", "m", "k"), [(0.5, 3, 3), (0.8, 5, 4), (1.0, 6, 6), (0.0, 2, 9)])
def test_score_interval_ends_where_the_test_of_an_area_rejects(area: float, m: int, k: int) -> None:
    ends = auc_score_interval(area, m, k)
    for end in ends:
        if end in (0.0, 1.0):
            assert end == area, "no area beyond it"
            continue
        exponential = (end / (2 - end) - end**2, 2 * end**2 / (1 + end) - end**2)
        # Hanley and McNeil 1982, equation 2, with (m + k) / 2 for each group.
        variance = (end * (1 - end) + ((m + k) / 2 - 1) * sum(exponential)) / (m * k)
        assert abs(end - area) / variance**0.5 == pytest.approx(1.959964, rel=1e-6)


def test_score_interval_contains_the_area_as_often_as_it_promises() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        area = auc(rng.normal(size=5), rng.normal(1.0, 1.0, size=5))
        assert area is not None
        low, high = auc_score_interval(area, 5, 5)
        hits += low <= 0.7602 <= high  # Φ(1 / √2)
    assert 0.92 <= hits / 400 <= 0.99


def test_best_cut_is_that_of_all_thresholds() -> None:
    rng = np.random.default_rng(2)
    members, others = rng.integers(0, 9, 20) / 8, rng.integers(3, 12, 15) / 8
    found = best_cut(members, others)
    assert found is not None
    tried = [
        ((members <= cut).sum() + (others > cut).sum()) / 35 for cut in np.arange(0, 1.5, 0.01)
    ]
    assert found[1] == pytest.approx(max(tried))
    cut = found[0]
    assert ((members <= cut).sum() + (others > cut).sum()) / 35 == pytest.approx(found[1])


def test_interval_of_a_mean_area_draws_the_same_rows_for_every_model() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(0, 1, 60), rng.normal(0.5, 1, 50)
    models = [tuple(side + rng.normal(0, 0.5, side.size) for side in base) for _ in range(3)]
    found = mean_auc_interval([(members, others) for members, others in models])
    assert found is not None
    drawn: list[float] = []
    for _ in range(1000):
        rows = rng.integers(60, size=60), rng.integers(50, size=50)
        areas = [auc(members[rows[0]], others[rows[1]]) for members, others in models]
        drawn.append(float(np.mean([area for area in areas if area is not None])))
    assert found == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.015)
    assert found[0] < np.mean(drawn) < found[1]
    # Three equal models are as uncertain as one.
    of_one = mean_auc_interval([base])
    assert of_one == auc_interval(*base)
    assert mean_auc_interval([base] * 3) == pytest.approx(of_one, abs=0.015)
    assert mean_auc_interval([base, (base[0][:-1], base[1])]) is None
    assert mean_auc_interval([base, (base[0], np.full(50, np.nan))]) is None
