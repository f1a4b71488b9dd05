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


class Forgotten(Summary):
    """HM over m of closeness(m) = 1 − |m − m_retain| / |m_start − m_retain|, at least 0.

    m  by default extraction strength, exact memorization, paraphrased probability and truth ratio
       as a share, on the forget set

    1 at the retain model, 0 at the start model, and falling again for a model that knows less than
    the retain model: to over-forget is not rewarded.
    """

    roles = frozenset({"forget"})
    relative_to = frozenset({"start", "retain"})
    question = "Is it forgotten?"

    of: tuple[str, ...] = Field(
        default=tuple(f"{name}_forget" for name in PARTS),
        description="columns from which the score is computed",
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """`forgotten`."""
        return (MetricColumn("forgotten", "Forgotten", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Measures of memorization, by default on the forget set, extraction strength first."""
        return self.of

    def compute(self, of: MetricInputs) -> Values:
        """None without a start model or a retain model."""
        if of.start is None or of.retain is None:
            return {}
        terms: list[float | None] = []
        for name in self.of:
            part, start, retain = (m.values.get(name) for m in (of.model, of.start, of.retain))
            if part is None or start is None or retain is None:
                terms.append(None)
            else:
                terms.append(max(1 - abs(part - retain) / max(abs(start - retain), _LEAST_GAP), 0))
        return {"forgotten": harmonic_mean(terms)}
