"""Weight of the true answer against a wrong one."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class TruthRatioShare(Metric):
    """P / (P + P̃ + ε): 1 where the model knows the answer, about ½ where it does not.

    P  paraphrased answer's probability per token;  P̃  geometric mean over the perturbed answers

    open-unlearning's form since December 2025 (`prob_mean`), ε = 1e-10; the paper's tables have it
    (Dorna et al. 2025, arXiv:2506.12618).
    """

    label = "Truth ratio as a share"
    reads = frozenset({"perturbed", "paraphrase"})
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]."""
        present = seen.perturbed
        false = np.exp(-seen.perturbed_loss.sum(axis=1, where=present) / present.sum(axis=1))
        true = np.exp(-seen.base_loss)
        share: FloatArray = true / (true + false + 1e-10)
        return share
