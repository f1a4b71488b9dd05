"""Is what is left private? Membership inference."""

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean

ATTACKS = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus")


class Private(Summary):
    """HM over attacks of s = A / A_r if A ≤ A_r, and (1 − A) / (1 − A_r) if not.

    A, A_r  areas under the ROC curve of the model and of the retain model

    The score is 1 at the retain model. It is 0 if forget rows are always recognised, and also if
    they always look less familiar than unseen rows. It is never relative to ½, because holdout rows
    may differ from the forget rows in themselves. open-unlearning has a privacy score, too, but no
    published formula.
    """

    after = frozenset(name.replace("_", "-") for name in ATTACKS)
    roles = frozenset({"forget", "holdout"})
    relative_to = frozenset({"retain"})
    question = "Is what is left private?"

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return the column `private`."""
        return (MetricColumn("private", "Private", "higher"),)

    def parts(self) -> tuple[str, ...]:
        """Return the areas of four attacks."""
        return ATTACKS

    def compute(self, of: MetricInputs) -> Values:
        """Return the score; none without a retain model or holdout rows."""
        if of.retain is None:
            return {}
        terms: list[float | None] = []
        for name in ATTACKS:
            area = of.model.values.get(name)
            aim = of.retain.values.get(name)
            terms.append(None if area is None or aim is None else _closeness(area, aim))
        return {"private": harmonic_mean(terms)}


def _closeness(area: float, aim: float) -> float:
    """Return the closeness s of an area A to the retain model's area A_r."""
    if area == aim:
        return 1.0
    return area / aim if area < aim else (1 - area) / (1 - aim)
