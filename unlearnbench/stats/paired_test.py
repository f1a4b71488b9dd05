"""Paired permutation test over the forget questions: does one method forget more than another?

Forget Quality ranks by D, the distance between a model's truth ratios and the retain model's. Two
models answer the same questions, so their Ds are compared question by question. Pure.

Own code: `scipy.stats.permutation_test` cannot correct for settings that were chosen by their D, as
`scipy.stats.bootstrap` cannot, and is slower: it computes D of each swap from the values, where
here one matrix product counts all swaps. scipy has no Holm adjustment.
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
POWER = 0.8
_AT_ONCE = 500


@dataclass(frozen=True)
class PairedTest:
    """Distances of two models from the retain model, and the significance of the difference."""

    distance_a: float
    """D to the retain model's truth ratios, mean over seeds; smaller forgets more."""
    distance_b: float
    p_value: float
    """For the hypothesis that A and B are exchangeable at every question; two-sided."""
    exact: bool
    """True if all swaps were enumerated."""
    low: float
    """Bootstrap interval over questions of `difference`; if a side was chosen from several
    settings, of the difference between the best settings of both sides."""
    high: float
    detectable: float
    """Approximately the least difference of D detected in `POWER` of all cases."""
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
    """Most by which a setting's D exceeds the chosen one's if it may be the best of its side.

    √(ln n) standard errors of a difference of two Ds over n questions, which are at most √(1/2n):
    n·D counts questions, and answers to the same question are correlated. Settings farther away
    are not competitors (Andrews and Soares 2010, Econometrica 78, 119-157, with their κ_n).
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
    """Test whether A's truth ratios lie nearer to the retain model's than B's; None with a NaN.

    a, b      [s, n] truth ratios of s runs (seeds) at the same n questions; any monotone scale
    retain    [n] the retain model's
    others_a  [s, n] each, the other settings that A was chosen from by the least D; likewise
              others_b
    swaps     number drawn if not all are enumerated (default: `PERMUTATIONS`)

    Statistic: mean over seeds of D(A, retain) less the same of B. Null distribution: at each
    question independently, A's and B's values are swapped or not, all seeds together; all 2ⁿ ways
    for few questions, else `PERMUTATIONS` drawn with a fixed seed and p = (b + 1) / (m + 1)
    (Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9(1), 39). The interval resamples
    questions with all their answers (Efron 1979, Ann. Statist. 7, 1-26), centred on the observed
    difference, because resampling makes every D larger. Seeds are not resampled.

    Choice. The side of less D, here B, was chosen from settings 1 … L, and so is nearer than it
    would be over other questions. Each swap therefore exchanges A with each of the L, and counts
    the largest difference (max-T: Westfall and Young 1993; Romano and Wolf 2005, Econometrica 73,
    1237-1282). With L = 1 that is the exact test above; with more, swaps keep to first order the
    joint distribution of the L differences. The choice of the other side needs no correction: let
    a be the best setting of A over all possible questions, and A* the chosen one. As
    D(A*) ≤ D(a), B's lead over A* is at most its lead over a, and that one is too large by chance
    in as many cases as p states. The interval's ends follow the same argument. With Δ the
    difference between the best of A and the best of B, the upper end is too low only if some
    setting of A is too near by that much compared with b; the lower end likewise with B. So each
    end takes the largest deviation over the settings of one side, and contains Δ. Simulated
    (2000 draws of 40 and of 80 questions, settings all alike, one side of 1 and one of 30): p and
    interval name a better side in 0.5 and 0.8 % of draws (12 and 16 % without the correction); the
    interval contains Δ in 99 % (80 to 82 % without).

    The hypothesis is that A and B answer alike, not only that their Ds are equal: two models at
    the same distance on opposite sides of the retain model fulfil the second and not the first,
    and are rejected in up to 30 % of cases at level 0.05. So consider the interval, too. Simulated
    (80 questions, 1 and 3 seeds, log ratios normal): models that are alike are rejected in 2 to
    6 % of cases; the interval contains the true difference in 92 to 100 %, but in 76 to 88 % if
    one of the models equals the retain model: its D is too large then, and the difference too
    small.
    Raises: EvaluationError if shapes do not fit.
    """
    if a.shape != b.shape or a.ndim != 2 or retain.shape != a.shape[1:] or a.size == 0:
        raise EvaluationError(
            f"paired test: truth ratios of shapes {a.shape}, {b.shape} and {retain.shape}; it "
            "needs [seeds, questions] twice and [questions], of the same questions"
        )
    if np.isnan(a).any() or np.isnan(b).any() or np.isnan(retain).any():
        return None
    all_a, all_b = (
        [np.array(other, np.float64) for other in (chosen, *others) if not np.isnan(other).any()]
        for chosen, others in ((a, others_a), (b, others_b))
    )
    seeds, n = a.shape
    cuts = np.unique(retain)
    of_retain = _below(retain[None], cuts)
    of_each = [_reach(_below(item, cuts).sum(axis=0), of_retain.sum(axis=0)) for item in (a, b)]
    d_a, d_b = (int(item.sum()) for item in of_each)
    loser, winners = (a, all_b) if d_a > d_b else (b, all_a)
    p_value, exact = _p_value(
        _below(loser, cuts),
        [_below(winner, cuts) for winner in winners],
        of_retain,
        d_a - d_b,
        swaps,
    )
    goal = np.array(retain, np.float64).tobytes(), RESAMPLES
    # [settings, RESAMPLES] D of each setting over resampled questions, less its mean.
    drawn_a, drawn_b = (
        np.stack([_resampled(item.tobytes(), seeds, goal) for item in side]) / (seeds * n)
        for side in (all_a, all_b)
    )
    off_a, off_b = (item - item.mean(axis=1, keepdims=True) for item in (drawn_a, drawn_b))
    part = off_a[0] - off_b[0]
    seen = (d_a - d_b) / (seeds * n)
    tail, head = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low = float(np.quantile(off_a[0] - off_b.max(axis=0), tail))
    high = float(np.quantile(off_a.max(axis=0) - off_b[0], head))
    narrow = float(np.quantile(part, head) - np.quantile(part, tail))
    normal = NormalDist().inv_cdf
    reach = normal(head) * ((high - low) / narrow if narrow > 0 else 1.0) + normal(POWER)
    return PairedTest(
        distance_a=d_a / (seeds * n),
        distance_b=d_b / (seeds * n),
        p_value=p_value,
        exact=exact,
        low=seen + low,
        high=seen + high,
        detectable=reach * float(part.std()),
        n=n,
        by_seed=tuple(((of_each[0] - of_each[1]) / n).tolist()),
        choices=(len(all_a), len(all_b)),
    )


def _below(ratios: FloatArray, cuts: FloatArray) -> Counts:
    """[n, s, 2 cuts] 1 where a value is at most, and where it is below, each of the cuts.

    Between two of the retain model's values its distribution function is constant and the other
    one rises, so that their largest distance is at one of these values, or just before it.
    """
    values = ratios.T[:, :, None]
    return np.concatenate([values <= cuts, values < cuts], axis=2).astype(np.float32)


def _reach(counts: Counts, retain: Counts) -> NDArray[np.int64]:
    """[..., s] n·D of [..., s, c] counts and the retain model's [..., 1, c]."""
    reach: NDArray[np.int64] = np.abs(counts - retain).max(axis=-1).astype(np.int64)
    return reach


def _distances(counts: Counts, retain: Counts) -> NDArray[np.int64]:
    """[...] sum of `_reach` over seeds."""
    summed: NDArray[np.int64] = _reach(counts, retain).sum(axis=-1)
    return summed


def _p_value(
    loser: Counts, winners: Sequence[Counts], retain: Counts, seen: int, drawn: int | None
) -> tuple[float, bool]:
    """Share of swaps whose largest difference reaches `seen`; True if all were enumerated."""
    # Swapping equal answers changes nothing.
    moves = np.any([(winner != loser).any(axis=(1, 2)) for winner in winners], axis=0)
    goal, part = retain.sum(axis=0), loser.sum(axis=0)
    n = int(moves.sum())
    exact = n <= EXACT
    as_large = total = 0
    for swaps in _swaps(n, None if exact else drawn or PERMUTATIONS):
        largest = np.zeros(len(swaps), dtype=np.int64)
        for winner in winners:
            change = (winner - loser)[moves].reshape(n, part.size)
            present = part + (swaps @ change).reshape(-1, *part.shape)
            back = winner.sum(axis=0) + part - present
            difference = _distances(present, goal) - _distances(back, goal)
            np.maximum(largest, np.abs(difference), out=largest)
        as_large += int((largest >= abs(seen)).sum())
        total += len(swaps)
    return (as_large / total if exact else (as_large + 1) / (total + 1)), exact


def _swaps(n: int, count: int | None) -> Iterator[Counts]:
    """[swaps, n] ways to swap some of n questions: `count` drawn ones in parts, or all 2ⁿ."""
    if count is None:
        yield (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float32)
        return
    rng = np.random.default_rng(0)
    for start in range(0, count, _AT_ONCE):
        yield rng.integers(0, 2, (min(_AT_ONCE, count - start), n)).astype(np.float32)


@lru_cache(maxsize=512)  # the leader of a panel is compared with every other method
def _resampled(ratios: bytes, seeds: int, goal: tuple[bytes, int]) -> FloatArray:
    """[resamples] D of a setting, n and seeds times, over questions drawn with replacement.

    ratios  [s, n] as bytes, which can be the key of a cache
    goal    arguments of `_drawn_questions`
    """
    times, of_retain = _drawn_questions(*goal)
    cuts = np.unique(np.frombuffer(goal[0]))
    item = _below(np.frombuffer(ratios).reshape(seeds, -1), cuts)
    n, *rest = item.shape
    flat = item.reshape(n, -1)
    arraies: list[NDArray[np.int64]] = []
    for i in range(0, len(times), _AT_ONCE):
        counts = (times[i : i + _AT_ONCE] @ flat).reshape(-1, *rest)
        arraies.append(_distances(counts, of_retain[i : i + _AT_ONCE]))
    return np.concatenate(arraies).astype(np.float64)


@lru_cache(maxsize=2)
def _drawn_questions(retain: bytes, resamples: int) -> tuple[Counts, Counts]:
    """[resamples, n] draws of each question; [resamples, 1, c] the retain model's counts."""
    ratios = np.frombuffer(retain)
    n = len(ratios)
    times = np.random.default_rng(0).multinomial(n, [1 / n] * n, resamples).astype(np.float32)
    return times, (times @ _below(ratios[None], np.unique(ratios))[:, 0])[:, None]


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p-values of a family of tests; Holm 1979, Scand. J. Statist. 6, 65-70.

    The smallest is multiplied by m, the next by m - 1, never below the one before, at most 1.
    """
    order = np.argsort(p_values)
    times = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    raised = np.empty(len(order))
    raised[order] = np.minimum(1.0, np.maximum.accumulate(times))
    return tuple(raised.tolist())
