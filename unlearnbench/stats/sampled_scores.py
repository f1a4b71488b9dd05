"""Numbers from the scores in [0, 1] of sampled answers: the best of k, and upper bounds.

Bounds hold with probability 1 − α over the samples, whatever the distribution of the scores. The
samples of one question are independent and identically distributed. The samples of several
questions are only independent.

Source: Scholten et al. 2025, "A Probabilistic Perspective on Unlearning and Alignment for Large
Language Models", arXiv:2410.03523, and its code (yascho/probabilistic-unlearning). That code
evaluates the bounds on a grid of 100 steps, while they are exact sums here.

Symbols: n samples of a question, […] any dimensions before it, s_(1) ≤ … ≤ s_(n) sorted scores,
F distribution function of the scores, F̂ distribution function of the n samples.
"""

import math

import numpy as np

from unlearnbench.stats import FloatArray

_HALVINGS = 60
"""Steps of a search, which narrow it to 2⁻⁶⁰ by halves, or to (2/3)⁶⁰ = 3e-11 by thirds."""


def expected_best(scores: FloatArray, k: int) -> FloatArray:
    """Compute the expected largest of k scores that are drawn without replacement from n.

    Σ_{i=k..n} C(i−1, k−1) / C(n, k) · s_(i)

    It is an unbiased estimate of the largest of k new scores.

    Args:
        scores: Scores […, n].
        k: Number of draws, at most n.

    Returns:
        Expectations […]. They are NaN if a score is NaN.
    """
    n = scores.shape[-1]
    i = np.arange(n, k, -1)
    # The last weight is k/n. Each weight follows from the one after it, so that nothing cancels.
    falling = np.concatenate([[k / n], (i - k) / (i - 1)]).cumprod()  # of s_(n) … s_(k)
    best: FloatArray = np.sort(scores, axis=-1)[..., k - 1 :] @ falling[::-1]  # NaN is the last
    return best


def leak_at_k(scores: FloatArray, threshold: float, k: int) -> FloatArray:
    """Compute the probability that at least one of k scores reaches a threshold.

    1 − C(n − c, k) / C(n, k), if c of the n scores reach it

    The formula is that of pass@k (Chen et al. 2021, arXiv:2107.03374), as in Reisizadeh et al.
    2025, arXiv:2511.04934.

    Args:
        scores: Scores […, n].
        threshold: Least score that counts as a leak.
        k: Number of draws without replacement, at most n.

    Returns:
        Probabilities […]. They are NaN if a score is NaN.
    """
    reached = np.where(np.isnan(scores), np.nan, scores >= threshold)
    return expected_best(reached, k)


def spread_score(scores: FloatArray, weight: float) -> FloatArray:
    """Compute mean + weight · standard deviation […] of scores […, n], the paper's ED score."""
    array: FloatArray = scores.mean(axis=-1) + weight * scores.std(axis=-1)
    return array


def probability_bound(count: int, n: int, alpha: float) -> float:
    """Compute an upper bound on a probability after `count` successes in n trials.

    It is the p at which so few successes have probability α (Clopper and Pearson 1934). If the
    trials have different probabilities and α is at most 1/4, it bounds their mean, because so few
    successes are then even less likely (Hoeffding 1956, Annals of Mathematical Statistics 27,
    theorem 4).
    """
    from scipy.special import betaincinv  # scipy.stats takes a second to import

    return 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - alpha))


def mean_bound(mean: float, n: int, alpha: float) -> float:
    """Compute an upper bound on the mean expectation of n independent numbers in [0, 1].

    It is the largest μ with n · kl(mean, μ) ≤ ln 1/α, in which kl is the divergence between two
    Bernoulli distributions (Hoeffding 1963, Journal of the American Statistical Association 58,
    theorem 1).

    Args:
        mean: The observed mean.
        n: Number of numbers.
        alpha: Probability with which the bound may fail.
    """
    from scipy.special import rel_entr

    low, high = mean, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        divergence = rel_entr(mean, middle) + rel_entr(1 - mean, 1 - middle)
        if n * divergence <= -math.log(alpha):
            low = middle
        else:
            high = middle
    return high


def expectation_bound(scores: FloatArray, alpha: float) -> FloatArray:
    """Compute an upper bound on the expected score, ∫ min(1, 1 − F̂(s) + ε) ds over [0, 1].

    ε = √(ln(1/α) / 2n) is the width of the one-sided band around F̂ (Dvoretzky, Kiefer and
    Wolfowitz 1956; Massart 1990, for α up to 1/2).

    Args:
        scores: Scores […, n].
        alpha: Probability with which the bound may fail.

    Returns:
        Bounds […]. They are NaN if a score is NaN.
    """
    n = scores.shape[-1]
    # The lower end of the band around F, between each two neighbouring scores.
    low = np.maximum(np.arange(n + 1) / n - _band(n, alpha), 0)
    bound: FloatArray = 1 - np.diff(_padded(np.sort(scores, axis=-1))) @ low
    return bound


def deviation_bound(scores: FloatArray, alpha: float) -> FloatArray:
    """Compute an upper bound on the standard deviation of the scores, at most 1/2.

    The variance is at most E(S − m)², with m the mean of the samples. The bound is the largest
    value of E(S − m)² for all distributions in the two-sided band of width ε = √(ln(2/α) / 2n)
    around F̂. The largest value belongs to a distribution function that follows the upper end of the
    band left of m, up to a certain level, and the lower end right of m, from that level on. The
    paper uses bounds on the expectation instead of m, which gives a larger bound.

    Args:
        scores: Scores […, n].
        alpha: Probability with which the bound may fail.

    Returns:
        Bounds […]. They are NaN if a score is NaN.
    """
    n = scores.shape[-1]
    width = _band(n, alpha / 2)
    mean = scores.mean(axis=-1, keepdims=True)  # […, 1]
    grid = _padded(np.sort(np.concatenate([scores, mean], axis=-1), axis=-1))  # […, n + 3]
    left = grid[..., 1:] <= mean  # […, n + 2] intervals
    # F̂ on each interval. The mean is a point of the grid but no sample, so it adds nothing to F̂.
    empirical = (np.arange(n + 2) - ~left) / n
    upper = np.minimum(empirical + width, 1)
    lower = np.maximum(empirical - width, 0)
    rises = np.diff((grid - mean) ** 2)

    def variance(level: FloatArray) -> FloatArray:
        """Compute E(S − m)² […, 1] for a level […, 1]; a concave function of the level."""
        ends = np.where(left, np.minimum(upper, level), np.maximum(lower, level))
        array: FloatArray = (1 - mean) ** 2 - (ends * rises).sum(axis=-1, keepdims=True)
        return array

    # Ternary search for the level with the largest variance.
    low = np.zeros_like(mean)
    high = np.ones_like(mean)
    for _ in range(_HALVINGS):
        left_third = (2 * low + high) / 3
        right_third = (low + 2 * high) / 3
        is_rising = variance(left_third) < variance(right_third)
        low = np.where(is_rising, left_third, low)
        high = np.where(is_rising, high, right_third)
    bound: FloatArray = np.sqrt(np.minimum(variance(low), 0.25))[..., 0]
    return bound


def _band(n: int, alpha: float) -> float:
    """Return the width ε of the one-sided band around F̂."""
    return math.sqrt(-math.log(alpha) / (2 * n))


def _padded(scores: FloatArray) -> FloatArray:
    """Add the ends 0 and 1 to sorted scores […, n], which gives […, n + 2]."""
    ends = np.zeros((*scores.shape[:-1], 1))
    return np.concatenate([ends, scores, ends + 1], axis=-1)


def verbatim_leak(losses: FloatArray, k: int) -> FloatArray:
    """Compute the probability […] that one of k samples at temperature 1 is a given text.

    1 − (1 − q)^k with q = exp(−loss), in full precision even if q is 1e-300

    Args:
        losses: Loss […] of each text, summed over its tokens.
        k: Number of samples.
    """
    array: FloatArray = -np.expm1(k * np.log1p(-np.exp(-losses)))
    return array
