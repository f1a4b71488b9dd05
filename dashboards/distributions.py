"""The two distributions that Forget Quality compares: truth ratios on the forget set of a model and
of the retain model. The data, not its look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.metrics import ForgetQuality, forget_quality, truth_ratios
from unlearnbench.evaluation.profiles import Profile, profile_of_id
from unlearnbench.evaluation.result import Evaluation, FloatArray
from unlearnbench.records import Record

from .held import Held

STEP = 0.002
"""Decades to which a page draws a ratio; its numbers are of the exact ones."""


@dataclass(frozen=True)
class Gap:
    """Where two empirical distribution functions are furthest apart, and the test of that."""

    at: float
    """log10 R, in the middle of the first stretch on which the distance is D."""
    below: int
    """Ratios of the unlearned model at or below it."""
    below_retain: int
    """Ratios of the retain model at or below it."""
    quality: ForgetQuality


def widest(unlearned: FloatArray, retain: FloatArray) -> Gap | None:
    """The gap between two models' truth ratios [n], as the KS test sees it; None if one is NaN.

    The exact p-value and D are those of `forget_quality`. Raises: EvaluationError where the two
    have other numbers of questions.
    """
    quality = forget_quality(unlearned, retain)
    if quality is None:
        return None
    points = np.unique(np.concatenate([unlearned, retain]))
    below = np.searchsorted(np.sort(unlearned), points, side="right")
    below_retain = np.searchsorted(np.sort(retain), points, side="right")
    place = int(np.abs(below - below_retain).argmax())
    # Both functions are level up to the next point; the last point has distance 0.
    stretch = logarithms(points[place : place + 2])
    return Gap(float(stretch.mean()), int(below[place]), int(below_retain[place]), quality)


def logarithms(ratios: FloatArray) -> FloatArray:
    """[n] log10 R, ascending; what underflowed to 0 or overflowed stands at the last float."""
    tiny, huge = np.finfo(np.float64).tiny, np.finfo(np.float64).max
    found: FloatArray = np.log10(np.sort(np.clip(ratios, tiny, huge)))
    return found


def ratios_of(evaluation: Evaluation, profile: Profile) -> FloatArray | None:
    """[n] truth ratios on the forget set; None where it was not evaluated, or one is NaN."""
    part = evaluation.sets.get("forget")
    if part is None or not len(part.base_loss):
        return None
    ratios = truth_ratios(part, profile)
    return None if np.isnan(ratios).any() else ratios


def collect(held: Held, records: Sequence[Record]) -> dict[str, Any]:
    """The distributions of all evaluations, as the page reads them.

    step     decades to a unit
    why_not  why there are none, where there are none
    there    record → epoch → log10 R in units, ascending: the first, then what each adds
    gaps     record → epoch → [at, below, below of the retain model, n, D, log10 p]
    """
    kinds = {record.id: record for record in records}
    found: dict[str, Any] = {"step": STEP, "why_not": "", "there": {}, "gaps": {}}
    try:
        profiles = {r.profile: profile_of_id(r.profile) for r in records if r.epochs}
    except EvaluationError as error:
        return found | {"why_not": str(error)}
    known: dict[tuple[str, int], FloatArray] = {}
    for (record_id, epoch), evaluation in held.evaluations.items():
        ratios = ratios_of(evaluation, profiles[kinds[record_id].profile])
        if ratios is not None:
            known[record_id, epoch] = ratios
            found["there"].setdefault(record_id, {})[str(epoch)] = _units(ratios)
    goals = _goals(known, kinds)
    for (record_id, epoch), ratios in known.items():
        record = kinds[record_id]
        goal = goals.get((record.model, record.forget_fraction))
        gap = None if goal is None or len(goal) != len(ratios) else widest(ratios, goal)
        if gap is not None and record.kind != "retain":
            found["gaps"].setdefault(record_id, {})[str(epoch)] = _numbers(gap)
    return found


def _goals(
    known: Mapping[tuple[str, int], FloatArray], kinds: Mapping[str, Record]
) -> dict[tuple[str, float], FloatArray]:
    return {
        (kinds[i].model, kinds[i].forget_fraction): ratios
        for (i, _), ratios in known.items()
        if kinds[i].kind == "retain"
    }


def _units(ratios: FloatArray) -> list[int]:
    units = np.rint(logarithms(ratios) / STEP).astype(np.int64)
    return [int(units[0]), *np.diff(units).tolist()]


def _numbers(gap: Gap) -> list[float]:
    quality = gap.quality
    counts = (gap.below, gap.below_retain, quality.n)
    return [round(gap.at, 4), *counts, quality.statistic, quality.log10_p]
