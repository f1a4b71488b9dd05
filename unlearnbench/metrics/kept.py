"""Is the rest kept? Relative to the start model."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean


class Kept(Summary):
    """HM over m of min(m / m_start, 1).

    m  by default Model Utility, and the share of distinct 4-grams in answers to the forget set,
       which falls to 0 where a model loops
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
        """`kept`."""
        return (MetricColumn("kept", "Kept", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Columns that it is the mean of."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """None without a start model."""
        if of.start is None:
            return {}
        terms: list[float | None] = []
        for name in self.of:
            part, start = of.model.values.get(name), of.start.values.get(name)
            terms.append(None if part is None or not start else min(part / start, 1))
        return {"kept": harmonic_mean(terms)}
