"""Membership by the norm of the loss's gradient."""

from typing import ClassVar

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation


class GradNormAttack(MembershipInference):
    """(1/P) Σ_p ‖∂/∂W_p (1/L) Σ_t −log p(y_t)‖₂: Wang et al. 2024, arXiv:2402.17012.

    W_p  the P weight tensors of the model
    L    tokens of the answer without EOS; an answer without a token has no score

    This is open-unlearning's form (`GradNormAttack`, p = 2), but in evaluation mode, without
    dropout. It takes a forward and a backward pass for each forget, retain and holdout row, and
    memory for a gradient of all weights. So it is computed only if `evaluation.metrics` names it.
    """

    label = "GradNorm"
    key = "grad_norm"
    reads: ClassVar[frozenset[Reads]] = frozenset({"grad_norm"})
    roles: ClassVar[frozenset[Role]] = frozenset()

    def scores(self, seen: SetEvaluation) -> FloatArray | None:
        """Return norms [n]."""
        return seen.grad_norm
