"""Whether one method forgets more than another: a paired test over the forget questions.

What Forget Quality ranks by is D, the distance between a model's truth ratios and the retain
model's; two models were asked the same questions, so their Ds are compared question by question.
Pure: arrays in, numbers out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.result import FloatArray
from unlearnbench.intervals import LEVEL

Counts = NDArray[np.float32]
"""Whole numbers below 2²⁴, which float32 holds exactly and multiplies fast."""

PERMUTATIONS = 9_999
"""Swaps that are drawn where not all are looked at: no p-value is below 1e-4 then."""
EXACT = 13
"""Most questions of which every swap is looked at: 2¹³ = 8192."""
RESAMPLES = 2_000
POWER = 0.8
_AT_ONCE = 500


@dataclass(frozen=True)
class Paired:
    """Two models against the retain model, and what the difference is worth."""

    distance_a: float
    """D to the retain model's truth ratios, mean over seeds; smaller forgets more."""
    distance_b: float
    p_value: float
    """Of the hypothesis that A and B may change places at every question; two-sided."""
    exact: bool
    """Whether every swap was looked at."""
    low: float
    """Bootstrap interval over questions of `difference`."""
    high: float
    detectable: float
    """About the least difference of D that this many questions show in `POWER` of all cases."""
    n: int
    """Questions."""
    by_seed: tuple[float, ...]
    """`difference` of each pair of runs."""
    level: float = LEVEL

    @property
    def difference(self) -> float:
        """D of A less D of B: below 0 where A forgets more."""
        return self.distance_a - self.distance_b

    @property
    def seeds(self) -> int:
        """Pairs of runs."""
        return len(self.by_seed)


def paired_test(
    a: FloatArray, b: FloatArray, retain: FloatArray, *, level: float = LEVEL
) -> Paired | None:
    """Test whether A's truth ratios lie nearer to the retain model's than B's; None with a NaN.

    a, b    [s, n] truth ratios of s runs (seeds) at the same n questions; any monotone scale
    retain  [n] the retain model's

    Statistic: mean over seeds of D(A, retain) less the same of B. Null distribution: at each
    question by itself, A's and B's values change places or stay, those of all seeds together; all
    2ⁿ ways for few questions, else `PERMUTATIONS` drawn with a fixed seed and p = (b + 1) / (m + 1)
    (Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9(1), 39). The interval resamples
    questions, with all that was said to them (Efron 1979, Ann. Statist. 7, 1-26), centred on what
    was seen: resampling by itself makes every D larger. Seeds are taken as they are.

    The hypothesis is that A and B answer alike, not only that their Ds are equal: two models at
    one distance on opposite sides of the retain model fulfil the second and not the first, and
    are then told apart up to three times in ten at level 0.05. So ask the interval, too. Simulated
    (80 questions, 1 and 3 seeds, log ratios normal): models that are alike are told apart in 2 to
    6 % of cases; the interval holds the true difference in 92 to 100 %, but in 76 to 88 % where
    one of the models cannot be told from the retain model: its D is too large then, and the
    difference too small.
    Raises: EvaluationError where shapes do not fit.
    """
    if a.shape != b.shape or a.ndim != 2 or retain.shape != a.shape[1:] or a.size == 0:
        raise EvaluationError(
            f"paired test: truth ratios of shapes {a.shape}, {b.shape} and {retain.shape}; it "
            "needs [seeds, questions] twice and [questions], of the same questions"
        )
    if np.isnan(a).any() or np.isnan(b).any() or np.isnan(retain).any():
        return None
    seeds, n = a.shape
    cuts = np.unique(retain)
    of_a, of_b, of_retain = (_below(one, cuts) for one in (a, b, retain[None]))
    of_each = [_reach(one.sum(axis=0), of_retain.sum(axis=0)) for one in (of_a, of_b)]
    d_a, d_b = (int(one.sum()) for one in of_each)
    p_value, exact = _p_value(of_a, of_b, of_retain, d_a - d_b)
    drawn = _resampled(of_a, of_b, of_retain) / (seeds * n)
    seen = (d_a - d_b) / (seeds * n)
    tails = np.quantile(drawn - drawn.mean(), [(1 - level) / 2, (1 + level) / 2])
    normal = NormalDist().inv_cdf
    reach = normal((1 + level) / 2) + normal(POWER)
    return Paired(
        distance_a=d_a / (seeds * n),
        distance_b=d_b / (seeds * n),
        p_value=p_value,
        exact=exact,
        low=seen + float(tails[0]),
        high=seen + float(tails[1]),
        detectable=reach * float(drawn.std()),
        n=n,
        by_seed=tuple(((of_each[0] - of_each[1]) / n).tolist()),
        level=level,
    )


def _below(ratios: FloatArray, cuts: FloatArray) -> Counts:
    """[n, s, 2 cuts] whether a value is at most, and whether it is below, each of the cuts.

    Between two of the retain model's values its distribution function stands still and the other
    one rises, so that their largest distance is at one of these values, or just before it.
    """
    values = ratios.T[:, :, None]
    return np.concatenate([values <= cuts, values < cuts], axis=2).astype(np.float32)


def _reach(counts: Counts, retain: Counts) -> NDArray[np.int64]:
    """[..., s] n·D of [..., s, c] counts and the retain model's [..., 1, c]."""
    reach: NDArray[np.int64] = np.abs(counts - retain).max(axis=-1).astype(np.int64)
    return reach


def _distances(counts: Counts, retain: Counts) -> NDArray[np.int64]:
    """[...] the same, added up over seeds."""
    summed: NDArray[np.int64] = _reach(counts, retain).sum(axis=-1)
    return summed


def _p_value(a: Counts, b: Counts, retain: Counts, seen: int) -> tuple[float, bool]:
    """Share of swaps whose difference is as large as `seen`, and whether these were all."""
    change = (b - a).reshape(len(a), -1)
    moves = change.any(axis=1)  # what is alike changes nothing by changing places
    change = change[moves]
    both, kept, goal = (a + b).sum(axis=0), a.sum(axis=0), retain.sum(axis=0)
    n = len(change)
    exact = n <= EXACT
    as_large = total = 0
    for swaps in _all_swaps(n) if exact else _drawn_swaps(n):
        of_a = kept + (swaps @ change).reshape(-1, *kept.shape)
        difference = _distances(of_a, goal) - _distances(both - of_a, goal)
        as_large += int((np.abs(difference) >= abs(seen)).sum())
        total += len(swaps)
    return (as_large / total if exact else (as_large + 1) / (total + 1)), exact


def _all_swaps(n: int) -> Iterator[Counts]:
    """[2ⁿ, n] every way to swap some of n questions."""
    numbers = np.arange(2**n)[:, None]
    yield (numbers >> np.arange(n) & 1).astype(np.float32)


def _drawn_swaps(n: int) -> Iterator[Counts]:
    rng = np.random.default_rng(0)
    for start in range(0, PERMUTATIONS, _AT_ONCE):
        yield rng.integers(0, 2, (min(_AT_ONCE, PERMUTATIONS - start), n)).astype(np.float32)


def _resampled(a: Counts, b: Counts, retain: Counts) -> FloatArray:
    """[RESAMPLES] the difference, n and seeds times, of questions drawn with replacement."""
    n = len(a)
    rng = np.random.default_rng(0)
    found: list[FloatArray] = []
    for start in range(0, RESAMPLES, _AT_ONCE):
        times = rng.multinomial(n, [1 / n] * n, min(_AT_ONCE, RESAMPLES - start))
        of_a, of_b, goal = (
            (times.astype(np.float32) @ one.reshape(n, -1)).reshape(-1, *one.shape[1:])
            for one in (a, b, retain)
        )
        found.append((_distances(of_a, goal) - _distances(of_b, goal)).astype(np.float64))
    return np.concatenate(found)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """p-values of a family of tests, each raised so that all hold together; in the given order.

    The smallest is taken m times, the next m - 1 times, never below the one before, at most 1.
    Holm 1979, Scand. J. Statist. 6, 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    raised = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[index]))
        raised[index] = highest
    return tuple(raised)
