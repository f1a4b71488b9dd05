"""The harmonic mean, by which benchmarks combine numbers that must all be high."""

import math
from collections.abc import Iterable


def harmonic_mean(values: Iterable[float | None]) -> float | None:
    """Compute n / Σ 1/x.

    Returns:
        0 if a value is 0 or less. None if a value is None or NaN, or if there is no value.
    """
    numbers: list[float] = []
    for value in values:
        if value is None or math.isnan(value):
            return None
        numbers.append(value)
    if not numbers:
        return None
    if min(numbers) <= 0:
        return 0.0
    return len(numbers) / sum(1 / number for number in numbers)
