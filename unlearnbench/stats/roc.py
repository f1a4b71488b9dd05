"""Separation of two groups by a score: area under the ROC curve, true positives, interval."""

from __future__ import annotations

import numpy as np

from unlearnbench.stats import FloatArray

DRAWS = 2000
"""Bootstrap draws of an interval."""


def auc(members: FloatArray, others: FloatArray) -> float | None:
    """P(score of another > score of a member) + ½ P(equal), from [m] and [k] scores.

    The Mann-Whitney statistic as a share of all pairs. 1: members have the smaller scores; ½: no
    difference. None where a score is NaN or a group is empty.
    """
    if not _are_comparable(members, others):
        return None
    ranked = np.sort(others)
    smaller = np.searchsorted(ranked, members, side="left").sum()
    not_larger = np.searchsorted(ranked, members, side="right").sum()
    pairs = members.size * others.size
    return float(1 - (smaller + not_larger) / (2 * pairs))


def true_positive_rate(
    members: FloatArray, others: FloatArray, false_positive_rate: float = 0.01
) -> float | None:
    """Largest share of members that a threshold separates with so few of the others.

    Members are recognised by scores below the threshold; at most the share `false_positive_rate` of
    the others may lie there as well. None as in `auc`.
    """
    if not _are_comparable(members, others):
        return None
    allowed = int(false_positive_rate * others.size + 1e-9)
    if allowed >= others.size:
        return 1.0
    return float((members < np.sort(others)[allowed]).mean())


def auc_interval(
    members: FloatArray, others: FloatArray, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Bootstrap interval of `auc`: members and others are drawn again separately.

    Percentiles of `DRAWS` draws. None as in `auc`.
    """
    if not _are_comparable(members, others):
        return None
    values, places = np.unique(np.concatenate([members, others]), return_inverse=True)
    rng = np.random.default_rng(seed)

    def counts(group: np.ndarray[tuple[int], np.dtype[np.intp]]) -> FloatArray:  # [draws, values]
        shares = np.bincount(group, minlength=len(values)) / len(group)
        return rng.multinomial(len(group), shares, size=DRAWS) / len(group)

    of_members, of_others = counts(places[: members.size]), counts(places[members.size :])
    # Of each value, the share of others above it, and half of those that are equal.
    above = 1 - of_others.cumsum(axis=1) + of_others / 2
    drawn = (of_members * above).sum(axis=1)  # [draws]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _are_comparable(members: FloatArray, others: FloatArray) -> bool:
    return bool(
        members.size and others.size and not np.isnan(members).any() and not np.isnan(others).any()
    )
