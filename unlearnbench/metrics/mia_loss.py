"""Membership by the mean loss."""

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.observations import FloatArray, SetEvaluation


class LossAttack(MembershipInference):
    """Mean loss of the answer's tokens, EOS included: Yeom et al. 2018, arXiv:1709.01604."""

    label = "LOSS"
    key = "loss"

    def scores(self, seen: SetEvaluation) -> FloatArray:
        """Return losses [n] in nats."""
        return seen.answer_loss
