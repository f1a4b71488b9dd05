"""Separation of two groups by a score: area under the ROC curve, true positives, intervals, cut."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from unlearnbench.stats import FloatArray
from unlearnbench.stats.mean_interval import FEW

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

    Percentiles of `DRAWS` draws. Of few scores, and of an area of 0 or 1, it is the score interval
    (`auc_score_interval`), because draws of scores that are apart give nothing but that area. None
    as in `auc`.
    """
    area = auc(members, others)
    if area is None:
        return None
    if _needs_score_interval(area, members, others):
        return auc_score_interval(area, members.size, others.size, level=level)
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


def mean_auc_interval(
    pairs: Sequence[tuple[FloatArray, FloatArray]], *, level: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Bootstrap interval of the mean of several models' `auc` on the same rows.

    Members and others are drawn again separately, the same rows for every model. Percentiles of
    `DRAWS` draws. Of one model `auc_interval`. Of few rows, and if the mean is 0 or 1, it is the
    score interval of one area, because more models are no more rows.

    Args:
        pairs: Scores of members [m] and others [k] of each model, row by row.
        level: Probability that the interval contains the mean over all rows.
        seed: Seed of the draws.

    Returns:
        Lower and upper end. None as in `auc` for any model, or if models have different numbers of
        rows.
    """
    if len(pairs) == 1:
        return auc_interval(*pairs[0], level=level, seed=seed)
    sizes = {(members.size, others.size) for members, others in pairs}
    if len(sizes) != 1 or not all(_are_comparable(*pair) for pair in pairs):
        return None
    # P(other > member) + ½ P(equal) is a mean over pairs of rows, and so is its mean over models.
    wins = np.mean(
        [
            (members[:, None] < others) + 0.5 * (members[:, None] == others)
            for members, others in pairs
        ],
        axis=0,
    )  # [m, k]
    area = float(wins.mean())
    if _needs_score_interval(area, *pairs[0]):
        return auc_score_interval(area, *wins.shape, level=level)
    rng = np.random.default_rng(seed)

    def weights(count: int) -> FloatArray:  # [draws, count]
        return rng.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count

    of_members, of_others = (weights(count) for count in wins.shape)
    drawn = ((of_members @ wins) * of_others).sum(axis=1)  # [draws]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def auc_score_interval(
    area: float, members: int, others: int, *, level: float = 0.95
) -> tuple[float, float]:
    """Score interval of an area from few scores: the θ with (θ - area)² ≤ z² V(θ).

    V(θ) = θ (1 - θ) / (m k) · [1 + c (1 - θ) / (2 - θ) + c θ / (1 + θ)],  c = (m + k) / 2 - 1

    members, others  m and k, numbers of scores;  z  quantile (1 + level) / 2 of the normal

    Newcombe 2006, Statistics in Medicine 25:559-573, method 5. It has a width at an area of 1, too,
    where a bootstrap draws nothing but 1: three against three scores that are apart have 0.50 to 1.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    c, pairs = (members + others) / 2 - 1, members * others

    def outside(theta: float) -> bool:
        variance = theta * (1 - theta) / pairs
        variance *= 1 + c * (1 - theta) / (2 - theta) + c * theta / (1 + theta)
        return (theta - area) ** 2 > z**2 * variance

    def end(far: float) -> float:
        near = area
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (near, middle) if outside(middle) else (middle, far)
        return near

    return end(0.0), end(1.0)


def best_cut(members: FloatArray, others: FloatArray) -> tuple[float, float] | None:
    """The threshold with most members at or below it and others above, and their share of all.

    It lies in the middle between two scores; of several that are as good, in the widest gap. Where
    all scores are equal it is that score. None as in `auc`.
    """
    if not _are_comparable(members, others):
        return None
    values = np.unique(np.concatenate([members, others]))
    gaps = np.diff(values) if len(values) > 1 else np.zeros(1)
    cuts = values[: len(gaps)] + gaps / 2
    right = (members <= cuts[:, None]).sum(axis=1) + (others > cuts[:, None]).sum(axis=1)
    best = max(range(len(cuts)), key=lambda i: (right[i], gaps[i]))
    return float(cuts[best]), float(right[best] / (members.size + others.size))


def _needs_score_interval(area: float, members: FloatArray, others: FloatArray) -> bool:
    """Whether a bootstrap of these scores is too narrow."""
    return min(members.size, others.size) < FEW or area in (0.0, 1.0)


def _are_comparable(members: FloatArray, others: FloatArray) -> bool:
    return bool(
        members.size and others.size and not np.isnan(members).any() and not np.isnan(others).any()
    )
