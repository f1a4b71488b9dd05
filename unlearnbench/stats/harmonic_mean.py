"""The harmonic mean, by which benchmarks combine what a model must have all of."""

import math
from collections.abc import Iterable


def harmonic_mean(values: Iterable[float | None]) -> float | None:
    """n / Σ 1/x; 0 as soon as one value is 0 or less, None where one is undefined or none is given.

    A NaN is undefined.
    """
    result: list[float] = []
    for value in values:
        if value is None or math.isnan(value):
            return None
        result.append(value)
    if not result:
        return None
    return 0.0 if min(result) <= 0 else len(result) / sum(1 / value for value in result)
