"""Expected ROUGE-L recall of the best of k samples."""

from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.sampled_scores import expected_best


class ExpectedBest(Metric):
    """Σ_{i=k..n} C(i−1, k−1) / C(n, k) · s_(i): own work.

    s_(1) ≤ … ≤ s_(n) are the ROUGE-L recalls of n sampled answers. This is the unbiased estimate of
    the best of k recalls. It has the form of pass@k, and needs no threshold.
    """

    label = "Best of k samples, ROUGE-L"
    reads = frozenset({"samples"})
    roles = frozenset({"forget"})
    greedy = "rouge"

    k: int = Field(default=16, ge=1, description="number k of answers, the best of which counts")

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1].

        Raises:
            PluginError: There are fewer than k samples.
        """
        return expected_best(seen.sampled_scores(self.k), self.k)
