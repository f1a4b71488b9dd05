"""Is what is left private? Membership inference."""

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean

ATTACKS = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus")


class Private(Summary):
    """HM over attacks of s = A / A_r where A ≤ A_r, else (1 − A) / (1 − A_r).

    A, A_r  areas under the ROC curve of the model and of the retain model

    1 at the retain model, 0 where forget rows are always recognised and where they always look
    less familiar than unseen ones. Never relative to ½: holdout rows may differ from the forget
    rows in themselves. open-unlearning's own privacy score has no published formula.
    """

    after = frozenset(name.replace("_", "-") for name in ATTACKS)
    roles = frozenset({"forget", "holdout"})
    relative_to = frozenset({"retain"})
    question = "Is what is left private?"

    def columns(self) -> tuple[MetricColumn, ...]:
        """`private`."""
        return (MetricColumn("private", "Private", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """The areas of four attacks."""
        return ATTACKS

    def compute(self, of: MetricInputs) -> Values:
        """None without a retain model or holdout rows."""
        if of.retain is None:
            return {}
        terms: list[float | None] = []
        for name in ATTACKS:
            part, aim = of.model.values.get(name), of.retain.values.get(name)
            terms.append(None if part is None or aim is None else _closeness(part, aim))
        return {"private": harmonic_mean(terms)}


def _closeness(area: float, aim: float) -> float:
    if area == aim:
        return 1.0
    return area / aim if area < aim else (1 - area) / (1 - aim)
