"""How much is gone? Relative to the start model."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean


class Removed(Summary):
    """HM over m of 1 − min(1, m / m_start).

    m  by default extraction strength, exact memorization, probability and ROUGE on the forget set

    The score is 0 at the start model, and 1 if nothing is left of any m. It takes the place of
    `forgotten` if there is no retain model. A model that never saw the rows has m above 0. So 1 is
    not the aim, and over-forgetting cannot be seen.
    """

    relative_to = frozenset({"start"})
    question = "How much of it is removed?"

    of: tuple[str, ...] = Field(
        default=(
            "extraction_strength_forget",
            "exact_memorization_forget",
            "probability_forget",
            "rouge_forget",
        ),
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `removed`."""
        return (MetricColumn("removed", "Removed", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the columns that the score is the mean of."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """Return the score; none without a start model.

        It is None if the start model has nothing of an m, which then cannot be removed.
        """
        if of.start is None:
            return {}
        terms: list[float | None] = []
        for name in self.of:
            left = of.model.values.get(name)
            start = of.start.values.get(name)
            terms.append(None if left is None or not start else 1 - min(1.0, left / start))
        return {"removed": harmonic_mean(terms)}
