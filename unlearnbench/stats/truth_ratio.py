"""Truth ratios, computed in logarithms, because a collapsed model's probabilities underflow."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unlearnbench.stats import FloatArray


def truth_ratios(
    base_loss: FloatArray,
    perturbed_loss: FloatArray,
    *,
    mean: Literal["geometric", "arithmetic"] = "geometric",
    epsilon: float = 0.0,
    where: NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Compute R = (P(base) + ε) / mean_j P(perturbed_j) for each of n questions.

    P = exp(−loss) is a probability per token. If R is above 1, the true answer is more likely than
    the perturbed answers. The paper's R_truth is 1/R. TOFU's aggregation and the KS test give the
    same numbers for both. Maini et al. 2024, arXiv:2401.06121, section 2.2.1.

    Args:
        base_loss: Losses [n] of the paraphrased answers, or of the answers themselves for true
            facts.
        perturbed_loss: Losses [n, k] of the perturbed answers.
        mean: The mean over perturbed answers.
        epsilon: ε, which is added to the probability of the true answer.
        where: Which perturbed answers exist [n, k]. None: all.

    Returns:
        Ratios [n]. A ratio is NaN if one of its losses is NaN.
    """
    present = np.ones(perturbed_loss.shape, dtype=np.bool_) if where is None else where
    k = present.sum(axis=1)  # [n]
    # NaN and infinite losses are allowed, and give NaN or infinite ratios without a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        if mean == "geometric":
            log_perturbed = -perturbed_loss.sum(axis=1, where=present) / k  # [n]
        else:
            sums = np.logaddexp.reduce(-perturbed_loss, axis=1, where=present, initial=-np.inf)
            log_perturbed = sums - np.log(k)
        log_base = -base_loss  # [n]
        if epsilon > 0:
            log_base = np.logaddexp(log_base, math.log(epsilon))
        ratios: FloatArray = np.exp(log_base - log_perturbed)
    return ratios
