"""What the model can still do, by six metrics."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean

_METRICS = (
    "rouge",
    "probability",
    "truth_ratio",
    "token_entropy",
    "sentence_similarity",
    "answer_entailment",
)
_SETS = ("retain", "real_authors", "world_facts")


class SixMetricUtility(Summary):
    """Harmonic mean of six metrics on each of three sets; 0 as soon as one of them is 0.

    The metrics are ROUGE-L recall, probability, truth ratio (`advantage`), token entropy, sentence
    similarity and answer entailment. The sets are the retain set, real authors and world facts.
    Yuan et al. 2025, arXiv:2410.08109, call it Model Utility:
    sail-sg/closer-look-LLM-unlearning@b622294:metrics/metrics.py, `get_eval_results`. It is not
    TOFU's Model Utility, which has nine parts.
    """

    of: tuple[str, ...] = Field(
        default=tuple(f"{metric}_{name}" for name in _SETS for metric in _METRICS),
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `six_metric_utility`."""
        label = "Model Utility of six metrics"
        return (MetricColumn("six_metric_utility", label, "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the columns that the score is the mean of."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """Return the score. It is None if a column has no number."""
        return {"six_metric_utility": harmonic_mean(of.model.values.get(name) for name in self.of)}
