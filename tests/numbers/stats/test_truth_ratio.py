"""Truth ratios of answers whose losses are undefined."""

import numpy as np

from unlearnbench.stats.truth_ratio import truth_ratios


def test_an_undefined_loss_gives_an_undefined_ratio_and_no_warning() -> None:
    base = np.array([1.0, np.nan])
    perturbed = np.array([[1.0, 1.0], [np.nan, 1.0]])
    for epsilon in (0.0, 1e-10):
        for mean in ("geometric", "arithmetic"):
            ratios = truth_ratios(base, perturbed, mean=mean, epsilon=epsilon)
            assert np.isclose(ratios[0], 1.0)
            assert np.isnan(ratios[1])
