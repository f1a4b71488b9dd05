"""Probability of the greedy answer by the start model."""

from typing import ClassVar

import numpy as np

from unlearnbench.api.metric import Better, Metric, Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Fluency(Metric):
    """exp(−mean loss of the greedy answer's tokens under the start model): 1 / its perplexity.

    The loss counts EOS behind the answer, also behind one that was cut, so that an empty answer has
    a value. Near 0 for gibberish and loops. On the forget set neither end is wanted: the start
    model finds the answers that it has learned likelier than any other, so that the retain model's
    value is the aim.

    Needs the start model in memory beside the run's: only where `evaluation.metrics` names it.
    """

    label = "Fluency"
    reads: ClassVar[frozenset[Reads]] = frozenset({"start_loss"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]."""
        loss = seen.start_loss
        return np.full(len(seen.answer_loss), np.nan) if loss is None else np.exp(-loss)

    def better(self, role: Role) -> Better | None:
        """Higher, but of the forget set."""
        return None if role == "forget" else super().better(role)
