"""Membership by normalised log-probabilities (Min-K++)."""

import numpy as np

from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics.mia_min_k import MinK

_LEAST_VARIANCE = 1e-6


class MinKPlusPlus(MinK):
    """−mean of the ⌊K·L⌋ smallest z_t = (log p(y_t) − μ_t) / σ_t: Zhang et al. 2025, 2404.02936.

    μ_t, σ_t²  mean and variance of log p(v) over the vocabulary v under p, σ² at least 1e-6
    """

    label = "Min-K++"
    key = "min_k_plus_plus"

    def scores(self, seen: SetEvaluation) -> FloatArray | None:
        """Return the score of each answer [n] in standard deviations: higher for non-members.

        The result is None if the evaluation has no moments of the vocabulary.
        """
        tokens = seen.token_columns
        if tokens is None or tokens.mean_logprob is None or tokens.logprob_variance is None:
            return None
        z = (-tokens.loss - tokens.mean_logprob) / np.sqrt(
            np.maximum(tokens.logprob_variance, _LEAST_VARIANCE)
        )
        # The mean of the smallest z, with its sign changed, is the mean of the largest −z.
        answers = tokens.by_answer(z, eos=False)
        return np.array([self.mean_of_largest(-z_of_answer) for z_of_answer in answers])
