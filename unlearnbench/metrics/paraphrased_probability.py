"""Probability of the paraphrased answer."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class ParaphrasedProbability(Metric):
    """P(paraphrase) = exp(−mean loss): knowledge beyond the training rows' wording.

    This is open-unlearning's `forget_Q_A_PARA_Prob`, one of the four parts of its memorization
    score (Dorna et al. 2025, arXiv:2506.12618).
    """

    label = "Paraphrased probability"
    reads = frozenset({"paraphrase"})
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return probabilities [n]."""
        return np.exp(-seen.base_loss)
