"""Probability that one of k samples is verbatim."""

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.sampled_scores import verbatim_leak


class VerbatimLeak(Metric):
    """1 − (1 − q)^k with q = exp(−Σ_t ℓ_t), EOS included: own work, leak@k without an estimate.

    q is the probability that a sample at temperature 1 is the true answer, token by token. If the
    answer was cut, it is the probability that a sample begins with it. The default k is the largest
    k of Reisizadeh et al. 2025 (leak@k), arXiv:2511.04934.
    """

    label = "Verbatim leak at k samples"
    reads = frozenset({"tokens"})

    k: int = Field(
        default=128,
        ge=1,
        description="number k of samples, at least one of which repeats the answer",
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return probabilities [n]."""
        losses = seen.tokens.by_answer(seen.tokens.loss, eos=True)
        return verbatim_leak(np.array([loss.sum(dtype=np.float64) for loss in losses]), self.k)
