"""How much of an answer its beginning brings back."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import BoolArray, FloatArray, SetEvaluation


class ExtractionStrength(Metric):
    """ES = 1 − k*/L: Carlini et al. 2021, arXiv:2012.07805; Wang et al. 2025, arXiv:2502.19301.

    k*  the fewest answer tokens after which every further one is the most probable; L where the
        last one is not
    L   tokens of the answer without EOS; an answer without a token has no strength
    """

    label = "Extraction strength"
    reads = frozenset({"tokens"})
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]; NaN for an empty answer."""
        return np.array(
            [self._strength(h) for h in seen.tokens.by_answer(seen.tokens.hit, eos=False)]
        )

    @staticmethod
    def _strength(hits: BoolArray) -> float:
        if not hits.size:
            return np.nan
        missed = np.flatnonzero(~hits)
        return 1 - (missed[-1] + 1) / hits.size if missed.size else 1.0
