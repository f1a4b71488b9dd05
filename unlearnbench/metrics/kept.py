"""Is the rest kept? Relative to the start model."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean


class Kept(Summary):
    """HM over m of min(m / m_start, 1).

    m  by default Model Utility, and the share of distinct 4-grams in answers to the forget set,
       which falls to 0 if a model loops
    """

    after = frozenset({"model-utility", "utility"})
    roles = frozenset({"forget"})
    relative_to = frozenset({"start"})
    question = "Is the rest kept?"

    of: tuple[str, ...] = Field(
        default=("model_utility", "repetition_forget"),
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `kept`."""
        return (MetricColumn("kept", "Kept", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the columns that the score is the mean of."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """Return the score; none without a start model."""
        if of.start is None:
            return {}
        terms: list[float | None] = []
        for name in self.of:
            value = of.model.values.get(name)
            start = of.start.values.get(name)
            terms.append(None if value is None or not start else min(value / start, 1))
        return {"kept": harmonic_mean(terms)}
