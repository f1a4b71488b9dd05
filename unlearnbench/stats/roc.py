"""Separation of two groups by a score: area under the ROC curve, true positives, intervals, cut.

Members are recognised by smaller scores than the others, as a model has smaller losses on rows that
it was trained on. Symbols: m members, k others.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from unlearnbench.stats import FloatArray
from unlearnbench.stats.mean_interval import FEW

DRAWS = 2000
"""Bootstrap draws of an interval."""


def auc(members: FloatArray, others: FloatArray) -> float | None:
    """Compute the area under the ROC curve, P(other > member) + ½ P(equal).

    It is the Mann-Whitney statistic divided by the number of pairs. 1 means that all members have
    smaller scores, and ½ that there is no difference.

    Args:
        members: Scores [m].
        others: Scores [k].

    Returns:
        None if a score is NaN or a group is empty.
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
    """Compute the largest fraction of members that a threshold recognises.

    Args:
        members: Scores [m]. Those below the threshold are recognised.
        others: Scores [k].
        false_positive_rate: Largest fraction of others that may lie below the threshold as well.

    Returns:
        None if a score is NaN or a group is empty.
    """
    if not _are_comparable(members, others):
        return None
    # The small number keeps 0.29 · 100 = 28.999… from being rounded down.
    allowed = int(false_positive_rate * others.size + 1e-9)
    if allowed >= others.size:
        return 1.0
    return float((members < np.sort(others)[allowed]).mean())


def auc_interval(
    members: FloatArray, others: FloatArray, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Compute a bootstrap interval of `auc` from percentiles of `DRAWS` draws.

    Members and others are drawn separately. For few scores, and for an area of 0 or 1, the result
    is the score interval (`auc_score_interval`), because if no scores of the groups overlap, each
    draw has the same area.

    Args:
        members: Scores [m].
        others: Scores [k].
        level: Probability that the interval contains the area over all rows.
        seed: Seed of the draws.

    Returns:
        Lower and upper end, or None if a score is NaN or a group is empty.
    """
    area = auc(members, others)
    if area is None:
        return None
    if _needs_score_interval(area, members, others):
        return auc_score_interval(area, members.size, others.size, level=level)
    values, places = np.unique(np.concatenate([members, others]), return_inverse=True)
    rng = np.random.default_rng(seed)

    def drawn_shares(group: np.ndarray[tuple[int], np.dtype[np.intp]]) -> FloatArray:
        """Draw a group again, and return the fraction of each value [draws, values]."""
        shares = np.bincount(group, minlength=len(values)) / len(group)
        return rng.multinomial(len(group), shares, size=DRAWS) / len(group)

    of_members = drawn_shares(places[: members.size])
    of_others = drawn_shares(places[members.size :])
    # For each value, the fraction of others above it, and half of those that are equal.
    above = 1 - of_others.cumsum(axis=1) + of_others / 2
    drawn = (of_members * above).sum(axis=1)  # [draws]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_auc_interval(
    pairs: Sequence[tuple[FloatArray, FloatArray]], *, level: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Compute a bootstrap interval of the mean of several models' `auc` on the same rows.

    Members and others are drawn separately, with the same rows for every model. The interval
    consists of percentiles of `DRAWS` draws. For one model it is `auc_interval`. For few rows, and
    for a mean of 0 or 1, it is the score interval of one area, because more models do not add rows.

    Args:
        pairs: Scores of members [m] and others [k] of each model, row by row.
        level: Probability that the interval contains the mean over all rows.
        seed: Seed of the draws.

    Returns:
        Lower and upper end. None if models have different numbers of rows, or if a score is NaN or
        a group is empty.
    """
    if len(pairs) == 1:
        return auc_interval(*pairs[0], level=level, seed=seed)
    sizes = {(members.size, others.size) for members, others in pairs}
    if len(sizes) != 1 or not all(_are_comparable(*pair) for pair in pairs):
        return None
    # P(other > member) + ½ P(equal) is a mean over pairs of rows, and so is its mean over models.
    wins_by_model = [
        (members[:, None] < others) + 0.5 * (members[:, None] == others)
        for members, others in pairs
    ]
    wins = np.mean(wins_by_model, axis=0)  # [m, k]
    area = float(wins.mean())
    if _needs_score_interval(area, *pairs[0]):
        return auc_score_interval(area, *wins.shape, level=level)
    rng = np.random.default_rng(seed)

    def weights(count: int) -> FloatArray:
        """Draw rows again, and return the weight of each row [draws, count]."""
        return rng.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count

    of_members, of_others = (weights(count) for count in wins.shape)
    drawn = ((of_members @ wins) * of_others).sum(axis=1)  # [draws]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def auc_score_interval(
    area: float, members: int, others: int, *, level: float = 0.95
) -> tuple[float, float]:
    """Compute the score interval of an area: all θ with (θ - area)² ≤ z² V(θ).

    V(θ) = θ (1 - θ) / (m k) · [1 + c (1 - θ) / (2 - θ) + c θ / (1 + θ)],  c = (m + k) / 2 - 1

    z is the quantile (1 + level) / 2 of the normal distribution. Newcombe 2006, Statistics in
    Medicine 25:559-573, method 5. The interval has a width even at an area of 1, at which a
    bootstrap draws only 1. For three against three scores that do not overlap it is 0.50 to 1.

    Args:
        area: The observed area.
        members: Number of members, m.
        others: Number of others, k.
        level: Probability that the interval contains the area over all rows.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    c = (members + others) / 2 - 1
    pairs = members * others

    def is_outside(theta: float) -> bool:
        variance = theta * (1 - theta) / pairs
        variance *= 1 + c * (1 - theta) / (2 - theta) + c * theta / (1 + theta)
        return (theta - area) ** 2 > z**2 * variance

    def end(far: float) -> float:
        """Find the end of the interval between the area and `far`, by bisection."""
        near = area
        for _ in range(60):
            middle = (near + far) / 2
            if is_outside(middle):
                far = middle
            else:
                near = middle
        return near

    return end(0.0), end(1.0)


def best_cut(members: FloatArray, others: FloatArray) -> tuple[float, float] | None:
    """Find the threshold that classifies most scores correctly.

    A score is classified correctly if it is a member's and at most the threshold, or another's and
    above it. The threshold lies in the middle between two scores. If several thresholds are equally
    good, it lies in the widest gap. If all scores are equal, it is that score.

    Args:
        members: Scores [m].
        others: Scores [k].

    Returns:
        The threshold, and the fraction of all scores that it classifies correctly. None if a score
        is NaN or a group is empty.
    """
    if not _are_comparable(members, others):
        return None
    values = np.unique(np.concatenate([members, others]))
    gaps = np.diff(values) if len(values) > 1 else np.zeros(1)
    cuts = values[: len(gaps)] + gaps / 2
    correct = (members <= cuts[:, None]).sum(axis=1) + (others > cuts[:, None]).sum(axis=1)
    best = max(range(len(cuts)), key=lambda i: (correct[i], gaps[i]))
    return float(cuts[best]), float(correct[best] / (members.size + others.size))


def _needs_score_interval(area: float, members: FloatArray, others: FloatArray) -> bool:
    """Whether a bootstrap of these scores would be too narrow."""
    return min(members.size, others.size) < FEW or area in (0.0, 1.0)


def _are_comparable(members: FloatArray, others: FloatArray) -> bool:
    """Whether both groups have scores, and none is NaN."""
    return bool(
        members.size and others.size and not np.isnan(members).any() and not np.isnan(others).any()
    )
