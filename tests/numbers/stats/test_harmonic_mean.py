"""The harmonic mean at its limits."""

import math

import pytest

from unlearnbench.stats.harmonic_mean import harmonic_mean


def test_harmonic_mean() -> None:
    assert harmonic_mean([0.5, 1.0]) == pytest.approx(2 / 3, rel=1e-15)
    assert harmonic_mean([0.3] * 9) == pytest.approx(0.3, rel=1e-15)
    assert harmonic_mean([0.3, 0.0, 1.0]) == 0.0
    assert harmonic_mean([0.3, None, 0.0]) is None
    assert harmonic_mean([0.3, math.nan]) is None
    assert harmonic_mean([]) is None
    assert harmonic_mean([5e-324] * 9) == 0.0
