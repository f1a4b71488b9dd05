"""Mean and spread of the sampled answers' scores."""

import math

from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.sampled_scores import spread_score


class EDScore(Metric):
    """mean s + λ · standard deviation of s: Scholten et al. 2025, arXiv:2410.03523.

    s are the ROUGE-L recalls of n sampled answers. The score is not a probability: with λ = 2, a
    question that leaks only in some answers may have up to 1.62.
    """

    label = "ED score"
    reads = frozenset({"samples"})
    roles = frozenset({"forget"})
    bounds = (0.0, math.inf)

    spread: float = Field(default=2.0, ge=0, description="weight λ of the standard deviation")

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n], at least 0."""
        return spread_score(seen.sampled_scores(), self.spread)
