"""Probability of the true answer."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Probability(Metric):
    """P(answer) = exp(−mean loss of its tokens, EOS included): Maini et al. 2024, arXiv:2401.06121.

    It is a probability per token: the geometric mean over the answer.
    """

    label = "Probability"

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return probabilities [n]."""
        return np.exp(-seen.answer_loss)
