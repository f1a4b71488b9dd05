"""Weight of the true answer against a wrong one."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class TruthRatioShare(Metric):
    """P / (P + P̃ + ε): 1 if the model knows the answer, about ½ if it does not.

    P  probability per token of the paraphrased answer
    P̃  geometric mean of the same probability over the perturbed answers

    This is open-unlearning's form since December 2025 (`prob_mean`), with ε = 1e-10. The tables of
    its paper have it (Dorna et al. 2025, arXiv:2506.12618).
    """

    label = "Truth ratio as a share"
    reads = frozenset({"perturbed", "paraphrase"})
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]."""
        present = seen.perturbed
        false = np.exp(-seen.perturbed_loss.sum(axis=1, where=present) / present.sum(axis=1))
        true = np.exp(-seen.base_loss)
        share: FloatArray = true / (true + false + 1e-10)
        return share
