"""Truth ratios of two models on the forget set, and the largest gap between their distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.api.profile import Profile
from unlearnbench.evaluation.summary import truth_ratios
from unlearnbench.stats.ks_test import KSTest, ks_test


@dataclass(frozen=True)
class Gap:
    """The largest distance between two empirical distribution functions, and its KS test."""

    at: float
    """log10 R in the middle of the first interval on which the distance is D."""
    below: int
    """Number of the unlearned model's ratios up to there."""
    below_retain: int
    """Number of the retain model's ratios up to there."""
    quality: KSTest


def largest_gap(unlearned: FloatArray, retain: FloatArray) -> Gap | None:
    """Find the gap between two models' truth ratios [n] that the KS test uses; None if one is NaN.

    Exact p-value and D are those of `ks_test`. Raises: EvaluationError if the numbers of
    questions differ.
    """
    quality = ks_test(unlearned, retain)
    if quality is None:
        return None
    points = np.unique(np.concatenate([unlearned, retain]))
    below = np.searchsorted(np.sort(unlearned), points, side="right")
    below_retain = np.searchsorted(np.sort(retain), points, side="right")
    place = int(np.abs(below - below_retain).argmax())
    # Both functions are constant up to the next point; the distance at the last point is 0.
    interval = logarithms(points[place : place + 2])
    return Gap(float(interval.mean()), int(below[place]), int(below_retain[place]), quality)


def logarithms(ratios: FloatArray) -> FloatArray:
    """Sort log10 R [n]; ratios that underflowed or overflowed are put at the last normal float."""
    tiny, huge = np.finfo(np.float64).tiny, np.finfo(np.float64).max
    ascending: FloatArray = np.log10(np.sort(np.clip(ratios, tiny, huge)))
    return ascending


def ratios_of(evaluation: Evaluation, profile: Profile) -> FloatArray | None:
    """Compute the truth ratios [n] on the forget set; None if not evaluated, or one is NaN."""
    part = evaluation.sets.get("forget")
    if part is None or not len(part.base_loss):
        return None
    ratios = truth_ratios(part, profile)
    return None if np.isnan(ratios).any() else ratios
