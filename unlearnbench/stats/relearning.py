"""Numbers of an attack on a metric of memorisation: curves of relearning, and robustness.

All are about a metric of which larger values mean that more is memorised, such as the probability
of the answers. A value is undefined where it is None or not finite.
"""

import math
from collections.abc import Sequence

import numpy as np

from unlearnbench.stats import FloatArray

Value = float | None


def area_between(
    steps: Sequence[float], unlearned: Sequence[Value], retain: Sequence[Value], start: Value
) -> float | None:
    """The mean height of the unlearned model's curve above the retain model's, normalised.

    ∫ (u(s) − r(s)) ds / ((s_n − s_0) · (start − r(s_0))), by the trapezoidal rule.

    steps      [n] strictly increasing; the first one, s_0, is usually 0, before the attack
    unlearned  [n] u, the metric of the unlearned model after each of the steps
    retain     [n] r, that of the retain model under the same attack
    start      the metric of the start model, which has learned all rows, without an attack

    0: the same curve as the retain model's; 1: on average as far above it as the start model was
    before the attack. Points at which a curve is undefined are left out. None with fewer than two
    points left, where r(s_0) or `start` is undefined, and where the two are equal.
    """
    u, r = _array(unlearned), _array(retain)
    present = np.isfinite(u) & np.isfinite(r)
    if start is None or present.sum() < 2 or not np.isfinite(r[0]):
        return None
    x, span = np.asarray(steps, np.float64)[present], float(start) - float(r[0])
    if span == 0 or not math.isfinite(span):
        return None
    return float(np.trapezoid((u - r)[present], x) / (x[-1] - x[0]) / span)


def steps_to_half(steps: Sequence[float], values: Sequence[Value], start: Value) -> float | None:
    """The steps after which a model has half of the start model's value.

    steps   [n] strictly increasing
    values  [n] the metric of the attacked model after each of the steps
    start   the metric of the start model without an attack

    Linear between two points; points with an undefined value are left out. `steps[0]` where the
    first value is as high already, infinity where none is. None where no value is defined, or
    `start` is undefined or not above 0.
    """
    y = _array(values)
    present = np.isfinite(y)
    if start is None or not math.isfinite(start) or start <= 0 or not present.any():
        return None
    x, y, half = np.asarray(steps, np.float64)[present], y[present], start / 2
    reached = np.flatnonzero(y >= half)
    if not reached.size:
        return math.inf
    i = int(reached[0])
    if i == 0:
        return float(x[0])
    share = (half - y[i - 1]) / (y[i] - y[i - 1])
    return float(x[i - 1] + share * (x[i] - x[i - 1]))


def relearning_robustness(
    before: Value, after: Value, retain_before: Value, retain_after: Value
) -> float | None:
    """R = min(Δr / Δu, 1), the robustness of open-unlearning's meta-evaluation, at least 0.

    Δu = after − before of the unlearned model, Δr that of the retain model under the same attack:
    an honest model relearns no faster than one that has never seen the rows. Dorna et al. 2025,
    arXiv:2506.12618, section 4. Where Δu ≤ 0 nothing is relearned, and R is 1; the paper's ratio
    has no sense there. A retain model that loses (Δr < 0) while the other gains gives 0. None where
    a value is undefined.
    """
    finite = _finite(before, after, retain_before, retain_after)
    if finite is None:
        return None
    unlearned, retain = finite[1] - finite[0], finite[3] - finite[2]
    return 1.0 if unlearned <= 0 else max(min(retain / unlearned, 1.0), 0.0)


def symmetric_relearning_robustness(
    before: Value, after: Value, retain_before: Value, retain_after: Value
) -> float | None:
    """1 − |Δu − Δr| / (|Δu| + |Δr|); 0/0 is 1. arXiv:2605.24614, its form of R.

    Δu and Δr as in `relearning_robustness`. 1: both gain equally much; 0: one of them nothing, or
    one gains and the other loses. None where a value is undefined.
    """
    finite = _finite(before, after, retain_before, retain_after)
    return None if finite is None else _agreement(finite[1] - finite[0], finite[3] - finite[2])


def symmetric_quantization_robustness(before: Value, after: Value) -> float | None:
    """1 − |after − before| / (|after| + |before|); 0/0 is 1. arXiv:2605.24614, its form of Q.

    None where a value is undefined.
    """
    finite = _finite(before, after)
    return None if finite is None else _agreement(*finite)


def _agreement(item: float, other: float) -> float:
    size = abs(item) + abs(other)
    return 1.0 if size == 0 else 1 - abs(item - other) / size


def _finite(*values: Value) -> list[float] | None:
    """The values; None where one is undefined."""
    result = [value for value in values if value is not None and math.isfinite(value)]
    return result if len(result) == len(values) else None


def _array(values: Sequence[Value]) -> FloatArray:
    return np.array([math.nan if value is None else value for value in values], np.float64)
