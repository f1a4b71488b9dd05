"""What the model can still do, on your own rows."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean


class Utility(Summary):
    """Harmonic mean of columns of rows to keep; 0 as soon as one of them is 0.

    The default columns are probability and ROUGE on the retain set. This is Model Utility (Maini et
    al. 2024, arXiv:2401.06121) without truth ratios, which need paraphrased and wrong answers.
    """

    of: tuple[str, ...] = Field(
        default=("probability_retain", "rouge_retain"),
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `utility`."""
        return (MetricColumn("utility", "Utility", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the columns that the score is the mean of."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """Return the score. It is None if a column has no number."""
        return {"utility": harmonic_mean(of.model.values.get(name) for name in self.of)}
