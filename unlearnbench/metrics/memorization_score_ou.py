"""open-unlearning's memorization score."""

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean

PARTS = (
    "extraction_strength_ou",
    "exact_memorization",
    "paraphrased_probability",
    "truth_ratio_share",
)


class MemorizationScoreOU(Summary):
    """HM over m of 1 − min(m / m_start, 1): Dorna et al. 2025, arXiv:2506.12618, appendix F.1.

    m  extraction strength (with its floor), exact memorization, paraphrased probability and truth
       ratio as a share, on the forget set

    The paper says only "scaled by the fine-tuned model". This reading gives the numbers of its
    table. The score rewards destruction: a model that knows less than the retain model scores
    higher than the retain model.
    """

    roles = frozenset({"forget"})
    relative_to = frozenset({"start"})

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `memorization_score_ou`."""
        return (
            MetricColumn("memorization_score_ou", "Memorization score (open-unlearning)", "higher"),
        )

    def parts(self) -> tuple[str, ...]:
        """Return four columns of memorization on the forget set."""
        return tuple(f"{name}_forget" for name in PARTS)

    def compute(self, of: MetricInputs) -> Values:
        """Return the score; none without a start model."""
        if of.start is None:
            return {}
        terms: list[float | None] = []
        for name in self.parts():
            value = of.model.values.get(name)
            start = of.start.values.get(name)
            terms.append(None if value is None or not start else 1 - min(value / start, 1))
        return {"memorization_score_ou": harmonic_mean(terms)}
