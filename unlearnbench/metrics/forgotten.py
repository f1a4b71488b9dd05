"""Is it forgotten? Distance from the retain model."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean

PARTS = (
    "extraction_strength",
    "exact_memorization",
    "paraphrased_probability",
    "truth_ratio_share",
)
_LEAST_GAP = 1e-6
"""Smallest |m_start − m_retain| that is divided by."""


class Forgotten(Summary):
    """HM over m of closeness(m) = 1 − |m − m_retain| / |m_start − m_retain|, at least 0.

    m  by default extraction strength, exact memorization, paraphrased probability and truth ratio
       as a share, on the forget set

    The score is 1 at the retain model and 0 at the start model. It falls again for a model that
    knows less than the retain model, so over-forgetting is not rewarded.
    """

    roles = frozenset({"forget"})
    relative_to = frozenset({"start", "retain"})
    question = "Is it forgotten?"

    of: tuple[str, ...] = Field(
        default=tuple(f"{name}_forget" for name in PARTS),
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `forgotten`."""
        return (MetricColumn("forgotten", "Forgotten", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return columns of memorization, by default on the forget set, the most telling first."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """Return the score; none without a start model or a retain model."""
        if of.start is None or of.retain is None:
            return {}
        terms: list[float | None] = []
        for name in self.of:
            value = of.model.values.get(name)
            start = of.start.values.get(name)
            retain = of.retain.values.get(name)
            if value is None or start is None or retain is None:
                terms.append(None)
                continue
            gap = max(abs(start - retain), _LEAST_GAP)
            terms.append(max(1 - abs(value - retain) / gap, 0))
        return {"forgotten": harmonic_mean(terms)}
