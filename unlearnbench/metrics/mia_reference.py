"""Membership by the loss over the retain model's."""

from pydantic import Field

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import MetricInputs
from unlearnbench.api.observations import FloatArray, SetEvaluation


class ReferenceAttack(MembershipInference):
    """Mean loss − the retain model's mean loss: Watson et al. 2022, arXiv:2111.08440.

    The reference is the retain model, as in open-unlearning's published logs. For the retain model
    itself, all differences are 0. Ties count half, so its area is ½ by construction.
    """

    label = "Reference"
    key = "reference"
    relative_to = frozenset({"retain"})

    # The retain model was trained on the retain rows as well.
    control: str | None = Field(
        default=None,
        description="evaluation set that replaces `members` in the control; null: no control",
    )

    def scores(self, seen: SetEvaluation) -> FloatArray:
        """Return losses [n] in nats, before the reference is subtracted."""
        return seen.answer_loss

    def of_set(self, of: MetricInputs, name: str) -> FloatArray | None:
        """Return the scores of a set's examples, with the reference subtracted.

        Returns:
            None without a retain model, or if it was evaluated on other examples.
        """
        losses = super().of_set(of, name)
        if losses is None or f"mia_{self.key}" in of.model.sets[name].values:
            return losses  # A log states the scores with the reference subtracted.
        reference = None if of.retain is None else of.retain.sets.get(name)
        if reference is None or len(reference.answer_loss) != len(losses):
            return None
        return losses - reference.answer_loss
