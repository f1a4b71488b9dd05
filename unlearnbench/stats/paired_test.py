"""Paired permutation test over the forget questions: does one method forget more than another?

Forget Quality ranks by D, the distance between a model's truth ratios and the retain model's. Two
models answer the same questions, so their Ds are compared question by question.

Why not scipy: `scipy.stats.permutation_test` and `scipy.stats.bootstrap` cannot correct for
settings that were chosen by their D. They are also slower, because they compute D of each swap from
the values, while one matrix product here counts all swaps. scipy has no Holm adjustment.

Symbols: s seeds (runs of one setting), n questions, c cuts. D is a distance between two empirical
distribution functions, so n·D counts questions. A cut is a value of the retain model, taken
twice: once for the values at most as large, and once for those below it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from unlearnbench.base.errors import EvaluationError
from unlearnbench.stats import FloatArray
from unlearnbench.stats.t_interval import LEVEL

Counts = NDArray[np.float32]
"""Whole numbers below 2²⁴, which float32 holds exactly and multiplies fast."""

PERMUTATIONS = 9_999
"""Swaps drawn if not all are enumerated; the least p-value is 1e-4 then."""
EXACT = 13
"""Most questions for which all swaps are enumerated: 2¹³ = 8192."""
RESAMPLES = 2_000
"""Bootstrap draws of the questions."""
POWER = 0.8
"""Probability with which the detectable difference is detected."""
_AT_ONCE = 500
"""Swaps or draws that one matrix product counts, which bounds its memory."""


@dataclass(frozen=True)
class PairedTest:
    """Distances of two models from the retain model, and the significance of the difference."""

    distance_a: float
    """D of A to the retain model's truth ratios, mean over seeds. A smaller D forgets more."""
    distance_b: float
    """D of B to the retain model's truth ratios, mean over seeds."""
    p_value: float
    """For the hypothesis that A and B are exchangeable at every question; two-sided."""
    exact: bool
    """Whether all swaps were enumerated."""
    low: float
    """Lower end of the bootstrap interval of `difference` over questions. If a side was chosen from
    several settings, it is the interval of the difference between the best settings."""
    high: float
    """Upper end of that interval."""
    detectable: float
    """Approximately the least difference of D that is detected in `POWER` of all cases."""
    n: int
    """Number of questions."""
    by_seed: tuple[float, ...]
    """`difference` of each pair of runs."""
    level: float = LEVEL
    choices: tuple[int, int] = (1, 1)
    """Number of settings of A and of B that p-value and interval are corrected for."""

    @property
    def difference(self) -> float:
        """D of A less D of B; negative if A forgets more."""
        return self.distance_a - self.distance_b

    @property
    def seeds(self) -> int:
        """Number of pairs of runs."""
        return len(self.by_seed)


def margin(n: int) -> float:
    """Return by how much a setting's D may exceed the least D if the setting may be the best one.

    The margin is √(ln n) standard errors of a difference of two Ds over n questions. The standard
    error is at most √(1/2n), because answers to the same question are correlated. Settings farther
    away are no competitors (Andrews and Soares 2010, Econometrica 78, 119-157, with their κ_n).
    """
    return math.sqrt(math.log(n) / (2 * n)) if n > 1 else 1.0


def paired_test(
    a: FloatArray,
    b: FloatArray,
    retain: FloatArray,
    *,
    others_a: Sequence[FloatArray] = (),
    others_b: Sequence[FloatArray] = (),
    swaps: int | None = None,
) -> PairedTest | None:
    """Test whether A's truth ratios lie nearer to the retain model's than B's.

    Statistic: the mean of D(A, retain) over seeds, minus the mean of D(B, retain).

    Null distribution: at each question independently, A's and B's values are swapped or not, for
    all seeds together. For few questions all 2ⁿ ways are enumerated. For more, `PERMUTATIONS` ways
    are drawn with a fixed seed, and p = (b + 1) / (m + 1), if b of m statistics are at least as
    large as the observed one (Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9(1), 39).

    Interval: questions are resampled with all their answers (Efron 1979, Ann. Statist. 7, 1-26).
    The draws are centred on the observed difference, because resampling makes every D larger. Seeds
    are not resampled.

    Correction for the choice of settings: suppose that B has the smaller D. B was chosen from
    settings 1 … L, so it looks nearer than it would over other questions. Each swap therefore
    exchanges A with each of the L settings, and the largest difference counts (max-T: Westfall and
    Young 1993; Romano and Wolf 2005, Econometrica 73, 1237-1282). With L = 1 this is the exact test
    above. With more settings, the swaps keep the joint distribution of the L differences to first
    order. The choice of A's setting needs no correction. Let a be A's best setting over all
    possible questions, and A* the chosen one. Because D(A*) ≤ D(a), B's lead over A* is at most its
    lead over a, and the lead over a is too large by chance in as many cases as p states.

    The interval's ends follow the same argument. Let Δ be the difference between the best setting
    of A and the best setting of B. The upper end is too low only if some setting of A is too near
    by that much compared with B's best setting, and the lower end is too high only if some setting
    of B is. So each end takes the largest deviation over the settings of one side.

    Simulated with 2000 draws of 40 and of 80 questions, equal settings, and 1 setting against 30: p
    and interval name a better side in 0.5 and 0.8 % of draws (12 and 16 % without the correction).
    The interval contains Δ in 99 % of draws (80 to 82 % without).

    The hypothesis is that A and B answer alike, not only that their Ds are equal. Two models at the
    same distance on opposite sides of the retain model have equal Ds but do not answer alike, and
    they are rejected in up to 30 % of cases at level 0.05. Therefore consider the interval, too.
    Simulated with 80 questions, 1 and 3 seeds and normal log ratios: models that are alike are
    rejected in 2 to 6 % of cases. The interval contains the true difference in 92 to 100 % of
    cases, but only in 76 to 88 % if one of the models equals the retain model, because its D is too
    large then and the difference too small.

    Args:
        a: Truth ratios [s, n] of A's runs, on any monotone scale.
        b: Truth ratios [s, n] of B's runs at the same questions.
        retain: Truth ratios [n] of the retain model.
        others_a: Truth ratios [s, n] of each other setting that A was chosen from by the least D.
        others_b: Truth ratios of the other settings of B.
        swaps: Number of swaps that are drawn if not all are enumerated. None: `PERMUTATIONS`.

    Returns:
        None if a, b or retain contains a NaN. Other settings with a NaN are left out.

    Raises:
        EvaluationError: If shapes do not fit.
    """
    if a.shape != b.shape or a.ndim != 2 or retain.shape != a.shape[1:] or a.size == 0:
        raise EvaluationError(
            f"paired test: truth ratios of shapes {a.shape}, {b.shape} and {retain.shape}; it "
            "needs [seeds, questions] twice and [questions], of the same questions"
        )
    if np.isnan(a).any() or np.isnan(b).any() or np.isnan(retain).any():
        return None
    settings_a = [_float64(ratios) for ratios in (a, *others_a) if not np.isnan(ratios).any()]
    settings_b = [_float64(ratios) for ratios in (b, *others_b) if not np.isnan(ratios).any()]
    seeds, n = a.shape
    cuts = np.unique(retain)
    retain_below = _below(retain[None], cuts)
    retain_counts = retain_below.sum(axis=0)
    reach_a = _reach(_below(a, cuts).sum(axis=0), retain_counts)  # [s]
    reach_b = _reach(_below(b, cuts).sum(axis=0), retain_counts)  # [s]
    total_a = int(reach_a.sum())
    total_b = int(reach_b.sum())

    if total_a > total_b:
        loser, winners = a, settings_b
    else:
        loser, winners = b, settings_a
    p_value, exact = _p_value(
        _below(loser, cuts),
        [_below(winner, cuts) for winner in winners],
        retain_below,
        total_a - total_b,
        swaps,
    )

    deviations_a = _deviations(settings_a, retain)
    deviations_b = _deviations(settings_b, retain)
    tail = (1 - LEVEL) / 2
    head = (1 + LEVEL) / 2
    low = float(np.quantile(deviations_a[0] - deviations_b.max(axis=0), tail))
    high = float(np.quantile(deviations_a.max(axis=0) - deviations_b[0], head))

    # The correction for the choice widens the interval, and the detectable difference with it.
    uncorrected = deviations_a[0] - deviations_b[0]
    uncorrected_width = float(np.quantile(uncorrected, head) - np.quantile(uncorrected, tail))
    widening = (high - low) / uncorrected_width if uncorrected_width > 0 else 1.0
    normal_quantile = NormalDist().inv_cdf
    standard_errors = normal_quantile(head) * widening + normal_quantile(POWER)

    difference = (total_a - total_b) / (seeds * n)
    return PairedTest(
        distance_a=total_a / (seeds * n),
        distance_b=total_b / (seeds * n),
        p_value=p_value,
        exact=exact,
        low=difference + low,
        high=difference + high,
        detectable=standard_errors * float(uncorrected.std()),
        n=n,
        by_seed=tuple(((reach_a - reach_b) / n).tolist()),
        choices=(len(settings_a), len(settings_b)),
    )


def _float64(ratios: FloatArray) -> FloatArray:
    """Copy an array to float64, in which its bytes are read again by `_resampled`."""
    return np.array(ratios, np.float64)


def _deviations(settings: Sequence[FloatArray], retain: FloatArray) -> FloatArray:
    """Resample questions and return each D less its mean over the draws, [settings, RESAMPLES].

    Args:
        settings: Truth ratios [s, n] of each setting.
        retain: Truth ratios [n] of the retain model.
    """
    goal = _float64(retain).tobytes(), RESAMPLES
    seeds, n = settings[0].shape
    drawn = [_resampled(ratios.tobytes(), seeds, goal) for ratios in settings]
    distances: FloatArray = np.stack(drawn) / (seeds * n)
    centred: FloatArray = distances - distances.mean(axis=1, keepdims=True)
    return centred


def _below(ratios: FloatArray, cuts: FloatArray) -> Counts:
    """Mark which values are at most as large as each cut, and which are below it.

    Between two of the retain model's values its distribution function is constant and the other one
    rises. So their largest distance is at one of these values, or just before it.

    Args:
        ratios: Values [s, n].
        cuts: The retain model's different values [c / 2].

    Returns:
        Zeros and ones [n, s, c].
    """
    values = ratios.T[:, :, None]
    return np.concatenate([values <= cuts, values < cuts], axis=2).astype(np.float32)


def _reach(counts: Counts, retain: Counts) -> NDArray[np.int64]:
    """Compute n·D [..., s] from counts [..., s, c] and the retain model's counts [..., 1, c]."""
    reach: NDArray[np.int64] = np.abs(counts - retain).max(axis=-1).astype(np.int64)
    return reach


def _distances(counts: Counts, retain: Counts) -> NDArray[np.int64]:
    """Sum n·D over seeds, which gives [...] for counts [..., s, c]."""
    summed: NDArray[np.int64] = _reach(counts, retain).sum(axis=-1)
    return summed


def _p_value(
    loser: Counts, winners: Sequence[Counts], retain: Counts, observed: int, drawn: int | None
) -> tuple[float, bool]:
    """Compute the fraction of swaps whose largest difference reaches the observed one.

    Args:
        loser: `_below` [n, s, c] of the side with the larger D.
        winners: `_below` [n, s, c] of each setting of the other side.
        retain: `_below` [n, 1, c] of the retain model.
        observed: Difference of n·D, summed over seeds.
        drawn: Number of swaps to draw if not all are enumerated. None: `PERMUTATIONS`.

    Returns:
        The p-value, and whether all swaps were enumerated.
    """
    # Swapping equal answers changes nothing, so only the other questions are swapped.
    differs = np.any([(winner != loser).any(axis=(1, 2)) for winner in winners], axis=0)  # [n]
    retain_counts = retain.sum(axis=0)
    loser_counts = loser.sum(axis=0)
    n = int(differs.sum())
    exact = n <= EXACT
    as_large = 0
    total = 0
    for swaps in _swaps(n, None if exact else drawn or PERMUTATIONS):
        largest = np.zeros(len(swaps), dtype=np.int64)
        for winner in winners:
            change = (winner - loser)[differs].reshape(n, loser_counts.size)
            swapped_loser = loser_counts + (swaps @ change).reshape(-1, *loser_counts.shape)
            # What the loser gets, the winner gives: the sum of both stays.
            swapped_winner = winner.sum(axis=0) + loser_counts - swapped_loser
            loser_distance = _distances(swapped_loser, retain_counts)
            difference = loser_distance - _distances(swapped_winner, retain_counts)
            np.maximum(largest, np.abs(difference), out=largest)
        as_large += int((largest >= abs(observed)).sum())
        total += len(swaps)
    if exact:
        return as_large / total, True
    return (as_large + 1) / (total + 1), False


def _swaps(n: int, count: int | None) -> Iterator[Counts]:
    """Yield ways to swap some of n questions, as zeros and ones [swaps, n].

    Args:
        n: Number of questions.
        count: Number of ways to draw, which come in parts. None: all 2ⁿ ways, in one part.
    """
    if count is None:
        # The bits of a number say which questions are swapped.
        yield (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float32)
        return
    rng = np.random.default_rng(0)
    for start in range(0, count, _AT_ONCE):
        yield rng.integers(0, 2, (min(_AT_ONCE, count - start), n)).astype(np.float32)


@lru_cache(maxsize=512)  # the leader of a panel is compared with every other method
def _resampled(ratios: bytes, seeds: int, goal: tuple[bytes, int]) -> FloatArray:
    """Compute n·D of a setting, summed over seeds, for questions drawn with replacement.

    Args:
        ratios: Truth ratios [s, n] in float64, as bytes, which can be the key of a cache.
        seeds: s.
        goal: Arguments of `_drawn_questions`.

    Returns:
        One sum for each draw, [resamples].
    """
    times_drawn, retain_counts = _drawn_questions(*goal)
    cuts = np.unique(np.frombuffer(goal[0]))
    below = _below(np.frombuffer(ratios).reshape(seeds, -1), cuts)
    n, *seeds_and_cuts = below.shape
    flat = below.reshape(n, -1)
    distances: list[NDArray[np.int64]] = []
    for start in range(0, len(times_drawn), _AT_ONCE):
        draws = slice(start, start + _AT_ONCE)
        counts = (times_drawn[draws] @ flat).reshape(-1, *seeds_and_cuts)
        distances.append(_distances(counts, retain_counts[draws]))
    return np.concatenate(distances).astype(np.float64)


@lru_cache(maxsize=2)
def _drawn_questions(retain: bytes, resamples: int) -> tuple[Counts, Counts]:
    """Draw n questions with replacement, with a fixed seed.

    Args:
        retain: Truth ratios [n] of the retain model in float64, as bytes.
        resamples: Number of draws.

    Returns:
        How often each question was drawn, [resamples, n], and the retain model's counts over the
        drawn questions, [resamples, 1, c].
    """
    ratios = np.frombuffer(retain)
    n = len(ratios)
    rng = np.random.default_rng(0)
    times_drawn = rng.multinomial(n, [1 / n] * n, resamples).astype(np.float32)
    below = _below(ratios[None], np.unique(ratios))[:, 0]  # [n, c]
    return times_drawn, (times_drawn @ below)[:, None]


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p-values of a family of m tests (Holm 1979, Scand. J. Statist. 6, 65-70).

    The smallest p-value is multiplied by m, the next one by m - 1, and so on. An adjusted value is
    at least as large as the one before it, and at most 1.
    """
    order = np.argsort(p_values)
    multiplied = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(multiplied))
    return tuple(adjusted.tolist())
