"""Share of answer tokens that greedy decoding gives."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class ExactMemorization(Metric):
    """EM = (1/L) Σ_t [argmax_v p(v | prompt, y_<t) = y_t]: Tirumala et al. 2022, arXiv:2205.10770.

    L  tokens of the answer without EOS; an answer without a token has none

    If an answer was cut, open-unlearning's `exact_memorization` also leaves out its last token.
    """

    label = "Exact memorization"
    reads = frozenset({"tokens"})
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]; NaN for an empty answer."""
        hits = seen.tokens.by_answer(seen.tokens.hit, eos=False)
        return np.array([hit.mean() if hit.size else np.nan for hit in hits])
