"""Probability of the true option among all."""

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class OptionProbability(Metric):
    """P(answer) / (P(answer) + Σ_j P(wrong_j) + ε), Maini et al. 2024, section 2.2.1.

    P is a probability per token. open-unlearning has a positive ε, and TOFU has none.
    """

    label = "Probability"
    reads = frozenset({"perturbed"})

    epsilon: float = Field(
        default=0.0, ge=0, description="number ε that is added to the denominator"
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]."""
        # All are relative to the likeliest option, so that probabilities have a ratio even if each
        # of them would underflow.
        present = seen.perturbed
        least = seen.perturbed_loss.min(axis=1, where=present, initial=np.inf)
        likeliest = np.minimum(seen.answer_loss, least)  # [n]
        answer = np.exp(likeliest - seen.answer_loss)
        wrong = np.exp(likeliest[:, None] - seen.perturbed_loss).sum(axis=1, where=present)
        floor = self.epsilon * np.exp(likeliest) if self.epsilon > 0 else 0.0
        probability: FloatArray = answer / (answer + wrong + floor)
        return probability
