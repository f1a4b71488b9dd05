"""How much of an answer its beginning brings back."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import BoolArray, FloatArray, SetEvaluation


class ExtractionStrength(Metric):
    """ES = 1 − k*/L: Carlini et al. 2021, arXiv:2012.07805; Wang et al. 2025, arXiv:2502.19301.

    k*  the smallest number of answer tokens after which each further token is the most probable
        one; L if the last token is not
    L   tokens of the answer without EOS; an answer without a token has no strength
    """

    label = "Extraction strength"
    reads = frozenset({"tokens"})
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]; NaN for an empty answer."""
        hits_of_answers = seen.tokens.by_answer(seen.tokens.hit, eos=False)
        return np.array([self._strength(hits) for hits in hits_of_answers])

    @staticmethod
    def _strength(hits: BoolArray) -> float:
        """Return the strength of one answer, from whether each token is the most probable [L]."""
        if not hits.size:
            return np.nan
        missed = np.flatnonzero(~hits)
        if not missed.size:
            return 1.0
        strength: float = 1 - (missed[-1] + 1) / hits.size
        return strength
