"""Paraphrase of the true answer against wrong ones."""

from typing import Literal

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Better, Metric, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.truth_ratio import truth_ratios


class TruthRatio(Metric):
    """Truth ratio in one of the forms in use, from R = P(true) / P(false), see `truth_ratios`.

    closeness  min(R, 1/R): largest if true and false answers are equally likely (TOFU's forget set)
    advantage  max(0, 1 − 1/R): largest if the true answer is likelier (TOFU's other sets)

    Maini et al. 2024, arXiv:2401.06121, section 2.2. With open-unlearning's positive ε, 1/(1/R)
    becomes 1/(1/R + ε).
    """

    label = "Truth ratio"
    reads = frozenset({"perturbed"})

    form: Literal["closeness", "advantage"] = Field(
        default="advantage", description="closeness: min(R, 1/R); advantage: max(0, 1 − 1/R)"
    )
    mean: Literal["geometric", "arithmetic"] = Field(
        default="geometric", description="kind of mean over the probabilities of the false answers"
    )
    epsilon: float = Field(default=0.0, ge=0, description="number that is added to denominators")

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]."""
        # Both forms are computed from 1/R (false over true). From R, ε would change them.
        false_over_true = 1 / truth_ratios(
            seen.base_loss,
            seen.perturbed_loss,
            mean=self.mean,
            epsilon=self.epsilon,
            where=seen.perturbed,
        )
        if self.form == "advantage":
            return np.maximum(0, 1 - false_over_true)
        return np.minimum(false_over_true, 1 / (false_over_true + self.epsilon))

    def better(self, role: Role) -> Better | None:
        """Return the direction of the form: a model that knows the set has a low closeness."""
        wanted = super().better(role)
        if self.form == "advantage" or wanted is None:
            return wanted
        return "lower" if wanted == "higher" else "higher"
