"""Whether one method forgets more than another: a paired test over the forget questions.

What Forget Quality ranks by is D, the distance between a model's truth ratios and the retain
model's; two models were asked the same questions, so their Ds are compared question by question.
Pure: arrays in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    """Bootstrap interval over questions: of `difference`, and where a side was chosen from several
    settings, of the difference between the best that each side has."""
    high: float
    detectable: float
    """About the least difference of D that this many questions show in `POWER` of all cases."""
    n: int
    """Questions."""
    by_seed: tuple[float, ...]
    """`difference` of each pair of runs."""
    level: float = LEVEL
    choices: tuple[int, int] = (1, 1)
    """Settings of A and of B that p-value and interval take their choice from, with the chosen."""

    @property
    def difference(self) -> float:
        """D of A less D of B: below 0 where A forgets more."""
        return self.distance_a - self.distance_b

    @property
    def seeds(self) -> int:
        """Pairs of runs."""
        return len(self.by_seed)


def margin(n: int) -> float:
    """How far a setting's D may lie above the chosen one's, and might yet be the best of its side.

    √(ln n) standard errors of a difference of two Ds over n questions, which are at most √(1/2n):
    n·D counts questions, and answers to one question go together. What lies further off is not
    taken for a competitor (Andrews and Soares 2010, Econometrica 78, 119-157, with their κ_n).
    """
    return math.sqrt(math.log(n) / (2 * n)) if n > 1 else 1.0


def paired_test(
    a: FloatArray,
    b: FloatArray,
    retain: FloatArray,
    *,
    others_a: Sequence[FloatArray] = (),
    others_b: Sequence[FloatArray] = (),
    level: float = LEVEL,
    swaps: int | None = None,
) -> Paired | None:
    """Test whether A's truth ratios lie nearer to the retain model's than B's; None with a NaN.

    a, b      [s, n] truth ratios of s runs (seeds) at the same n questions; any monotone scale
    retain    [n] the retain model's
    others_a  [s, n] each, of the other settings that A was chosen from, for it had the least D;
              likewise others_b
    swaps     drawn where not all are looked at; `PERMUTATIONS` without

    Statistic: mean over seeds of D(A, retain) less the same of B. Null distribution: at each
    question by itself, A's and B's values change places or stay, those of all seeds together; all
    2ⁿ ways for few questions, else `PERMUTATIONS` drawn with a fixed seed and p = (b + 1) / (m + 1)
    (Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9(1), 39). The interval resamples
    questions, with all that was answered to them (Efron 1979, Ann. Statist. 7, 1-26), centred on
    the observed difference: resampling by itself makes every D larger. Seeds are taken as they are.

    Choice. The side of less D, here B, was chosen from settings 1 … L, and so is nearer than it
    would be over other questions. Each swap therefore exchanges A with each of the L, and counts
    the largest difference (max-T: Westfall and Young 1993; Romano and Wolf 2005, Econometrica 73,
    1237-1282). With L = 1 that is the exact test above; with more, swaps keep to first order the
    joint distribution of the L differences. The choice of the other side needs no correction: let
    a be the best setting of A over all questions that could be asked, and A* the chosen one. As
    D(A*) ≤ D(a), B's lead over A* is at most its lead over a, and that one is too large by chance
    in as many cases as p states. The interval's ends follow the same argument. With Δ the
    difference between the best of A and the best of B, the upper end is too low only where some
    setting of A is nearer than it should be, by that much, beside b; the lower end likewise with
    B. So each end takes the largest deviation over the settings of one side, and holds Δ.
    Simulated (2000 draws of 40 and of 80 questions, settings all alike, one side of 1 and one of
    30): p and interval name a better side in 0.5 and 0.8 % of draws, where without the other
    settings they did in 12 and 16 %; the interval holds Δ in 99 %, where it did in 80 to 82 %.

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
    wrong = [one.shape for one in (*others_a, *others_b) if one.shape != a.shape]
    if wrong:
        raise EvaluationError(
            f"paired test: another setting has truth ratios of shape {wrong[0]}, the chosen ones "
            f"{a.shape}: all of a side answer the same questions, with as many runs"
        )
    if np.isnan(a).any() or np.isnan(b).any() or np.isnan(retain).any():
        return None
    all_a, all_b = (
        [np.array(one, np.float64) for one in (chosen, *others) if not np.isnan(one).any()]
        for chosen, others in ((a, others_a), (b, others_b))
    )
    seeds, n = a.shape
    cuts = np.unique(retain)
    of_retain = _below(retain[None], cuts)
    of_each = [_reach(_below(one, cuts).sum(axis=0), of_retain.sum(axis=0)) for one in (a, b)]
    d_a, d_b = (int(one.sum()) for one in of_each)
    loser, winners = (a, all_b) if d_a > d_b else (b, all_a)
    p_value, exact = _p_value(
        _below(loser, cuts), [_below(one, cuts) for one in winners], of_retain, d_a - d_b, swaps
    )
    goal = np.array(retain, np.float64).tobytes(), RESAMPLES
    # [settings, RESAMPLES] D of each setting over resampled questions, less its mean.
    drawn_a, drawn_b = (
        np.stack([_resampled(one.tobytes(), seeds, goal) for one in side]) / (seeds * n)
        for side in (all_a, all_b)
    )
    off_a, off_b = (one - one.mean(axis=1, keepdims=True) for one in (drawn_a, drawn_b))
    own = off_a[0] - off_b[0]
    seen = (d_a - d_b) / (seeds * n)
    low = float(np.quantile(off_a[0] - off_b.max(axis=0), (1 - level) / 2))
    high = float(np.quantile(off_a.max(axis=0) - off_b[0], (1 + level) / 2))
    normal = NormalDist().inv_cdf
    tails = np.quantile(own, [(1 - level) / 2, (1 + level) / 2])
    wider = (high - low) / float(tails[1] - tails[0]) if tails[1] > tails[0] else 1.0
    reach = normal((1 + level) / 2) * wider + normal(POWER)
    return Paired(
        distance_a=d_a / (seeds * n),
        distance_b=d_b / (seeds * n),
        p_value=p_value,
        exact=exact,
        low=seen + low,
        high=seen + high,
        detectable=reach * float(own.std()),
        n=n,
        by_seed=tuple(((of_each[0] - of_each[1]) / n).tolist()),
        level=level,
        choices=(len(all_a), len(all_b)),
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


def _p_value(
    loser: Counts, winners: Sequence[Counts], retain: Counts, seen: int, drawn: int | None
) -> tuple[float, bool]:
    """Share of swaps whose largest difference reaches `seen`, and whether these were all."""
    # What is alike everywhere changes nothing by changing places.
    moves = np.any([(one != loser).any(axis=(1, 2)) for one in winners], axis=0)
    goal, kept = retain.sum(axis=0), loser.sum(axis=0)
    n = int(moves.sum())
    exact = n <= EXACT
    as_large = total = 0
    for swaps in _all_swaps(n) if exact else _drawn_swaps(n, drawn or PERMUTATIONS):
        largest = np.zeros(len(swaps), dtype=np.int64)
        for one in winners:
            change = (one - loser)[moves].reshape(n, kept.size)
            there = kept + (swaps @ change).reshape(-1, *kept.shape)
            back = one.sum(axis=0) + kept - there
            difference = _distances(there, goal) - _distances(back, goal)
            np.maximum(largest, np.abs(difference), out=largest)
        as_large += int((largest >= abs(seen)).sum())
        total += len(swaps)
    return (as_large / total if exact else (as_large + 1) / (total + 1)), exact


def _all_swaps(n: int) -> Iterator[Counts]:
    """[2ⁿ, n] every way to swap some of n questions."""
    numbers = np.arange(2**n)[:, None]
    yield (numbers >> np.arange(n) & 1).astype(np.float32)


def _drawn_swaps(n: int, count: int) -> Iterator[Counts]:
    rng = np.random.default_rng(0)
    for start in range(0, count, _AT_ONCE):
        yield rng.integers(0, 2, (min(_AT_ONCE, count - start), n)).astype(np.float32)


@lru_cache(maxsize=512)  # the leader of a panel is compared with every other method
def _resampled(ratios: bytes, seeds: int, goal: tuple[bytes, int]) -> FloatArray:
    """[resamples] D of a setting, n and seeds times, over questions drawn with replacement.

    ratios  [s, n]; bytes, as is the retain model's, by which the result is kept
    goal    as the arguments of `_drawn_questions`
    """
    times, of_retain = _drawn_questions(*goal)
    cuts = np.unique(np.frombuffer(goal[0]))
    one = _below(np.frombuffer(ratios).reshape(seeds, -1), cuts)
    n, *rest = one.shape
    parts = range(0, len(times), _AT_ONCE)
    flat = one.reshape(n, -1)
    return np.concatenate(
        [
            _distances(
                (times[i : i + _AT_ONCE] @ flat).reshape(-1, *rest), of_retain[i : i + _AT_ONCE]
            )
            for i in parts
        ]
    ).astype(np.float64)


@lru_cache(maxsize=2)
def _drawn_questions(retain: bytes, resamples: int) -> tuple[Counts, Counts]:
    """[resamples, n] how often each question is drawn; [resamples, 1, c] the retain model's."""
    ratios = np.frombuffer(retain)
    n = len(ratios)
    times = np.random.default_rng(0).multinomial(n, [1 / n] * n, resamples).astype(np.float32)
    return times, (times @ _below(ratios[None], np.unique(ratios))[:, 0])[:, None]


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
