"""Entropy over the options of a multiple choice."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class OptionEntropy(Metric):
    """H(p) / ln k, p the softmax of the log-probabilities of a question's k options.

    The value is 1 if all options are equally likely. Then the knowledge is gone. A low accuracy
    does not show that, because the knowledge may be hidden behind a preference for another option
    (Sun et al. 2025, arXiv:2505.02884, section 3).
    """

    label = "Option entropy"
    reads = frozenset({"perturbed"})
    knows = None

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]."""
        from scipy.special import entr, softmax  # most benchmarks do not need this metric

        means, tokens, present = seen.scored_answers
        log_probabilities = np.where(tokens > 0, -means * tokens, np.nan)
        # Rows may have fewer options than others. A missing option has probability 0.
        log_probabilities = np.where(present, log_probabilities, -np.inf)
        entropy = entr(softmax(log_probabilities, axis=1)).sum(axis=1)
        option_count = np.maximum(present.sum(axis=1), 2)
        share: FloatArray = entropy / np.log(option_count)
        return share
