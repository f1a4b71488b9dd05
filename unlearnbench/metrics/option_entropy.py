"""Entropy over the options of a multiple choice."""

import numpy as np
from scipy.special import entr, softmax

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class OptionEntropy(Metric):
    """H(p) / ln k, p the softmax of the log-probabilities of a question's k options.

    1 where all are as likely: knowledge that is gone, where a low accuracy alone may be knowledge
    that is hidden behind another option (Sun et al. 2025, arXiv:2505.02884, section 3).
    """

    label = "Option entropy"
    reads = frozenset({"perturbed"})
    knows = None

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]."""
        means, tokens, present = seen.scored_answers
        sums = np.where(present, np.where(tokens > 0, -means * tokens, np.nan), -np.inf)
        total = entr(softmax(sums, axis=1)).sum(axis=1)
        entropy: FloatArray = total / np.log(np.maximum(present.sum(axis=1), 2))
        return entropy
