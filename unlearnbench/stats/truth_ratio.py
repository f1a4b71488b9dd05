"""Truth ratios, in logarithms: a collapsed model whose probabilities underflow still has them."""

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
    """[n] R = (P(base) + ε) / mean_j P(perturbed_j): above 1 the true answer is the likelier.

    base_loss       [n] of the paraphrased answer; of the answer itself for true facts
    perturbed_loss  [n, k]
    where           [n, k] the perturbed answers that there are; default: all

    P = exp(−loss), a probability per token. The paper's R_truth is 1/R; TOFU's aggregation and the
    KS test give the same for both. Maini et al. 2024, arXiv:2401.06121, section 2.2.1.
    """
    present = np.ones(perturbed_loss.shape, dtype=np.bool_) if where is None else where
    k = present.sum(axis=1)  # [n]
    # A loss may be NaN, and so is the ratio then.
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
