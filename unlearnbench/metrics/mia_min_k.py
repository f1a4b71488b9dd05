"""Membership by the least probable tokens (Min-K)."""

import numpy as np
from pydantic import Field

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.observations import Float32Array, FloatArray, SetEvaluation


class MinK(MembershipInference):
    """−mean of the ⌊K·L⌋ smallest log-probabilities, at least one: Shi et al. 2024, 2310.16789.

    L  tokens of the answer without EOS; an answer without a token has no score

    K is open-unlearning's 0.4.
    """

    label = "Min-K"
    key = "min_k"

    share: float = Field(default=0.4, gt=0, le=1, description="share K of the answer's tokens")

    def scores(self, seen: SetEvaluation) -> FloatArray | None:
        """Return scores [n] in nats; None if single tokens were not observed."""
        if seen.token_columns is None:
            return None
        losses = seen.tokens.by_answer(seen.tokens.loss, eos=False)
        return np.array([self.mean_of_largest(loss) for loss in losses])

    def mean_of_largest(self, values: FloatArray | Float32Array) -> float:
        """Return the mean of the ⌊K·L⌋ largest of L values, at least one; NaN without values."""
        if not values.size:
            return np.nan
        count = max(int(self.share * values.size), 1)
        return float(np.sort(values.astype(np.float64))[-count:].mean())
