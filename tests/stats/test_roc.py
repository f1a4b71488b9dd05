"""Areas under ROC curves against their definition, over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from unlearnbench.stats.roc import auc, auc_interval, true_positive_rate


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
    assert auc_interval(np.zeros(5), np.ones(5)) == (1, 1)
    assert auc_interval(np.array([np.nan]), others) is None
