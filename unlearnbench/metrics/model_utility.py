"""What the model can still do: TOFU's harmonic mean."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean


class ModelUtility(Summary):
    """Harmonic mean of other columns; 0 as soon as one is 0: Maini et al. 2024, arXiv:2401.06121.

    TOFU's columns are probability, ROUGE-L and truth ratio of the retain set, real authors and
    world facts.
    """

    of: tuple[str, ...] = Field(
        examples=[("probability_retain", "rouge_retain")],
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `model_utility`."""
        return (MetricColumn("model_utility", "Model Utility", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the columns that the score is the mean of."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """Return the score. It is None if a column has no number."""
        return {"model_utility": harmonic_mean(of.model.values.get(name) for name in self.of)}
