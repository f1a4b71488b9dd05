"""Gradient ascent: make forget answers less likely, without a bound."""

from torch import Tensor

from unlearnbench.api.method import LossBatch, Method, Needs


class GradientAscent(Method):
    """Gradient ascent on the forget set: Maini et al. 2024 (TOFU), section 3; Jang et al. 2023.

    L = mean_t log p_t

    t  answer token of a forget row, EOS included;  p_t  probability of the true token

    The loss has no lower bound. It falls without limit as p_t → 0, so the model collapses in long
    runs and at high rates.
    """

    family = "ascent"
    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        return -batch.forget.mean_tokens(batch.forget.cross_entropy())
