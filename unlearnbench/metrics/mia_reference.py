"""Reference: membership inference by the loss relative to the retain model's."""

from pydantic import Field

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import MetricInputs
from unlearnbench.api.observations import FloatArray, SetEvaluation


class ReferenceAttack(MembershipInference):
    """Mean loss − the retain model's mean loss: Watson et al. 2022, arXiv:2111.08440.

    The reference is the retain model, as in open-unlearning's published logs.
    """

    label = "Reference"
    key = "reference"
    relative_to = frozenset({"retain"})

    # The retain model was trained on the retain rows as well.
    control: str | None = Field(
        default=None, description="set in place of `members` in the control; null for none"
    )

    def scores(self, seen: SetEvaluation) -> FloatArray:
        """[n] in nats, before the reference is subtracted."""
        return seen.answer_loss

    def of_set(self, of: MetricInputs, name: str) -> FloatArray | None:
        """None without a retain model, and for that model itself."""
        result = super().of_set(of, name)
        if result is None or f"mia_{self.key}" in of.model.sets[name].values:
            return result  # a log states it with the reference subtracted
        if of.retain is None or of.retain.sets is of.model.sets:
            return None
        seen = of.retain.sets.get(name)
        same = seen is not None and len(seen.answer_loss) == len(result)
        return result - seen.answer_loss if seen is not None and same else None
