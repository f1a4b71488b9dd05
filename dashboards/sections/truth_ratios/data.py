"""Truth ratios of all embedded evaluations, as the section's script reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unlearnbench.api.observations import FloatArray
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import EvaluationError
from unlearnbench.results.records import Record

from ...figures.truth_ratio_data import Gap, largest_gap, logarithms, ratios_of
from ...page_budget import EmbeddedEvaluations

STEP = 0.002
"""Resolution of drawn ratios in decades; the numbers of gaps are computed from exact ratios."""


def ratio_data(embedded: EmbeddedEvaluations, records: Sequence[Record]) -> dict[str, Any]:
    """Encode the distributions of all evaluations.

    step    decades per unit
    reason  why there are no ratios; empty if there are any
    units   record → epoch → log10 R in units, ascending: the first, then differences
    gaps    record → epoch → [log10 R, ratios below, of the retain model, n, D, log10 p]
    """
    by_id = {record.id: record for record in records}
    data: dict[str, Any] = {"step": STEP, "reason": "", "units": {}, "gaps": {}}
    try:
        profiles = {r.profile: profile_of_id(r.profile) for r in records if r.epochs}
    except EvaluationError as error:
        return data | {"reason": str(error)}
    ratios = {
        key: found
        for key, evaluation in embedded.evaluations.items()
        if (found := ratios_of(evaluation, profiles[by_id[key[0]].profile])) is not None
    }
    goals = {
        (by_id[i].model, by_id[i].forget_fraction): found
        for (i, _), found in ratios.items()
        if by_id[i].kind == "retain"
    }
    for (record_id, epoch), own in ratios.items():
        data["units"].setdefault(record_id, {})[str(epoch)] = _units(own)
        record = by_id[record_id]
        goal = goals.get((record.model, record.forget_fraction))
        gap = None if goal is None or len(goal) != len(own) else largest_gap(own, goal)
        if gap is not None and record.kind != "retain":
            data["gaps"].setdefault(record_id, {})[str(epoch)] = _numbers(gap)
    return data


def _units(ratios: FloatArray) -> list[int]:
    units = np.rint(logarithms(ratios) / STEP).astype(np.int64)
    return [int(units[0]), *np.diff(units).tolist()]


def _numbers(gap: Gap) -> list[float]:
    quality = gap.quality
    counts = (gap.below, gap.below_retain, quality.n)
    return [round(gap.at, 4), *counts, quality.statistic, quality.log10_p]
