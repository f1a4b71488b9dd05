"""Probability of the greedy answer by the start model."""

from typing import ClassVar

import numpy as np

from unlearnbench.api.metric import Better, Metric, Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Fluency(Metric):
    """exp(−mean loss of the greedy answer's tokens under the start model): 1 / its perplexity.

    The loss counts EOS after the answer, even if the answer was cut, so that an empty answer has a
    value. It is near 0 for gibberish and loops. On the forget set, neither a high nor a low value
    is wanted: the start model finds the answers that it has learned likelier than all others, so
    the retain model's value is the aim.

    The start model has to be in memory together with the run's model. So the metric is computed
    only if `evaluation.metrics` names it.
    """

    label = "Fluency"
    reads: ClassVar[frozenset[Reads]] = frozenset({"start_loss"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]; NaN if the start model's loss was not observed."""
        if seen.start_loss is None:
            return np.full(len(seen.answer_loss), np.nan)
        return np.exp(-seen.start_loss)

    def better(self, role: Role) -> Better | None:
        """Return `higher`, except for the forget set."""
        return None if role == "forget" else super().better(role)
