"""Test of the truth ratios against the retain model's."""

import math
from typing import Literal

from pydantic import Field

from unlearnbench.api.metric import EvaluatedModel, MetricColumn, MetricInputs, Summary, Values
from unlearnbench.api.observations import FloatArray
from unlearnbench.stats.ks_test import ks_test
from unlearnbench.stats.truth_ratio import truth_ratios


class ForgetQuality(Summary):
    """p-value of the KS test between two models' truth ratios: Maini et al. 2024, section 2.2.2.

    The test compares the distributions of R on the forget set. It is two-sided and exact. At 1, the
    model is like one that never saw the forget rows.
    """

    relative_to = frozenset({"retain"})

    set: str = Field(default="forget", description="set whose truth ratios are compared")
    mean: Literal["geometric", "arithmetic"] = Field(
        default="geometric", description="kind of mean over the probabilities of the false answers"
    )
    epsilon: float = Field(default=0.0, ge=0, description="number that is added to the numerator")

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the p-value, its logarithm, the statistic D, and the number of questions."""
        return (
            MetricColumn("forget_quality", "Forget Quality", "higher"),
            MetricColumn(
                "log10_forget_quality", "log₁₀ Forget Quality", "higher", (-math.inf, 0.0)
            ),
            MetricColumn("ks_statistic", "KS D", "lower"),
            MetricColumn("ks_n", "KS n", None, (1.0, math.inf)),
        )

    def compute(self, of: MetricInputs) -> Values:
        """Return the numbers; none without a retain model or the set, or if a ratio is NaN."""
        ratios = self._ratios(of.model)
        ratios_of_retain = self._ratios(of.retain)
        if ratios is None or ratios_of_retain is None:
            return {}
        test = ks_test(ratios, ratios_of_retain)
        if test is None:
            return {}
        return {
            "forget_quality": test.p_value,
            "log10_forget_quality": test.log10_p,
            "ks_statistic": test.statistic,
            "ks_n": float(test.n),
        }

    def _ratios(self, model: EvaluatedModel | None) -> FloatArray | None:
        """Compute a model's truth ratios [n]; None if the set was not evaluated."""
        seen = None if model is None else model.sets.get(self.set)
        if seen is None:
            return None
        return truth_ratios(
            seen.base_loss,
            seen.perturbed_loss,
            mean=self.mean,
            epsilon=self.epsilon,
            where=seen.perturbed,
        )
