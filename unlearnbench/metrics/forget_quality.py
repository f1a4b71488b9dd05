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

    The distribution is that of R on the forget set; two-sided, exact. 1: like a model that never
    saw the forget rows.
    """

    relative_to = frozenset({"retain"})

    set: str = Field(default="forget", description="set whose truth ratios are compared")
    mean: Literal["geometric", "arithmetic"] = Field(
        default="geometric", description="kind of mean over the probabilities of the false answers"
    )
    epsilon: float = Field(default=0.0, ge=0, description="number that is added to the numerator")

    def columns(self) -> tuple[MetricColumn, ...]:
        """p-value, its logarithm, the statistic D, and the number of questions."""
        return (
            MetricColumn("forget_quality", "Forget Quality", "higher"),
            MetricColumn(
                "log10_forget_quality", "log₁₀ Forget Quality", "higher", (-math.inf, 0.0)
            ),
            MetricColumn("ks_statistic", "KS D", "lower"),
            MetricColumn("ks_n", "KS n", None, (1.0, math.inf)),
        )

    def compute(self, of: MetricInputs) -> Values:
        """None without a retain model or the set, or where a truth ratio is NaN."""
        part, goal = (self._ratios(item) for item in (of.model, of.retain))
        test = None if part is None or goal is None else ks_test(part, goal)
        if test is None:
            return {}
        numbers = (test.p_value, test.log10_p, test.statistic, float(test.n))
        return dict(zip((c.name for c in self.columns()), numbers, strict=True))

    def _ratios(self, model: EvaluatedModel | None) -> FloatArray | None:
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
