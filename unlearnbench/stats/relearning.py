"""Numbers of an attack on a metric of memorisation: curves of relearning, and robustness.

They expect a metric whose larger values mean that more is memorised, such as the probability of the
answers. A value is undefined if it is None or not finite.
"""

import math
from collections.abc import Sequence

import numpy as np

from unlearnbench.stats import FloatArray

Value = float | None


def area_between(
    steps: Sequence[float], unlearned: Sequence[Value], retain: Sequence[Value], start: Value
) -> float | None:
    """Compute the mean height of the unlearned model's curve above the retain model's, normalised.

    ∫ (u(s) − r(s)) ds / ((s_n − s_0) · (start − r(s_0))), by the trapezoidal rule

    0 means that both curves are equal. 1 means that the unlearned model's curve is, on average, as
    far above the retain model's as the start model was before the attack.

    Args:
        steps: Steps [n] of the attack, strictly increasing. The first one, s_0, is usually 0, which
            is before the attack.
        unlearned: u, the metric of the unlearned model after each of the steps [n].
        retain: r, the metric of the retain model under the same attack [n].
        start: The metric of the start model, which has learned all rows, without an attack.

    Returns:
        Points at which a curve is undefined are left out. None if fewer than two points are left,
        if r(s_0) or `start` is undefined, or if these two are equal.
    """
    u = _array(unlearned)
    r = _array(retain)
    is_defined = np.isfinite(u) & np.isfinite(r)
    if start is None or is_defined.sum() < 2 or not np.isfinite(r[0]):
        return None
    span = float(start) - float(r[0])
    if span == 0 or not math.isfinite(span):
        return None
    s = np.asarray(steps, np.float64)[is_defined]
    return float(np.trapezoid((u - r)[is_defined], s) / (s[-1] - s[0]) / span)


def steps_to_half(steps: Sequence[float], values: Sequence[Value], start: Value) -> float | None:
    """Compute after how many steps of an attack a model reaches half of the start model's value.

    Between two points the curve is linear. Points with an undefined value are left out.

    Args:
        steps: Steps [n] of the attack, strictly increasing.
        values: The metric of the attacked model after each of the steps [n].
        start: The metric of the start model without an attack.

    Returns:
        The first step if its value is as high already, and infinity if no value is. None if no
        value is defined, or if `start` is undefined or not above 0.
    """
    y = _array(values)
    is_defined = np.isfinite(y)
    if start is None or not math.isfinite(start) or start <= 0 or not is_defined.any():
        return None
    x = np.asarray(steps, np.float64)[is_defined]
    y = y[is_defined]
    half = start / 2
    reached = np.flatnonzero(y >= half)
    if not reached.size:
        return math.inf
    first = int(reached[0])
    if first == 0:
        return float(x[0])
    before = first - 1
    fraction = (half - y[before]) / (y[first] - y[before])
    return float(x[before] + fraction * (x[first] - x[before]))


def relearning_robustness(
    before: Value, after: Value, retain_before: Value, retain_after: Value
) -> float | None:
    """Compute R = min(Δr / Δu, 1), the robustness of open-unlearning's meta-evaluation.

    Δu = after − before, the gain of the unlearned model, and Δr = retain_after − retain_before, the
    gain of the retain model under the same attack. An honestly unlearned model relearns no faster
    than a model that has never seen the rows. Dorna et al. 2025, arXiv:2506.12618, section 4.

    Returns:
        If Δu ≤ 0, nothing is relearned, and R is 1: the paper's ratio has no meaning there. If the
        retain model loses (Δr < 0) while the unlearned model gains, R is 0. None if a value is
        undefined.
    """
    finite = _finite(before, after, retain_before, retain_after)
    if finite is None:
        return None
    before, after, retain_before, retain_after = finite
    unlearned_gain = after - before
    retain_gain = retain_after - retain_before
    if unlearned_gain <= 0:
        return 1.0
    return max(min(retain_gain / unlearned_gain, 1.0), 0.0)


def symmetric_relearning_robustness(
    before: Value, after: Value, retain_before: Value, retain_after: Value
) -> float | None:
    """Compute 1 − |Δu − Δr| / (|Δu| + |Δr|), the form of R in arXiv:2605.24614.

    Δu and Δr are the gains of the unlearned and of the retain model, as in `relearning_robustness`.

    Returns:
        1 if both models gain equally much, or nothing. 0 if only one of them gains, or if one gains
        and the other loses. None if a value is undefined.
    """
    finite = _finite(before, after, retain_before, retain_after)
    if finite is None:
        return None
    before, after, retain_before, retain_after = finite
    return _agreement(after - before, retain_after - retain_before)


def symmetric_quantization_robustness(before: Value, after: Value) -> float | None:
    """Compute 1 − |after − before| / (|after| + |before|), the form of Q in arXiv:2605.24614.

    Returns:
        1 if both values are 0. None if a value is undefined.
    """
    finite = _finite(before, after)
    return None if finite is None else _agreement(*finite)


def _agreement(number: float, other: float) -> float:
    """Compute 1 − |number − other| / (|number| + |other|); 1 if both are 0."""
    size = abs(number) + abs(other)
    return 1.0 if size == 0 else 1 - abs(number - other) / size


def _finite(*values: Value) -> list[float] | None:
    """Return the values, or None if one is undefined."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return finite if len(finite) == len(values) else None


def _array(values: Sequence[Value]) -> FloatArray:
    """Convert values to an array [n] in which None is NaN."""
    return np.array([math.nan if value is None else value for value in values], np.float64)
