"""NPO with larger weights for rows that are forgotten."""

import math
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms


class BalDRO(Method):
    """BalDRO-DV on NPO: arXiv:2601.09172, as its code has it.

    L = −κ log mean_b exp(−ℓ_b / κ),   ∇L = Σ_b w_b ∇ℓ_b,   w_b = softmax_b(−ℓ_b / κ)

    b    forget row of the optimiser step, over all micro-batches and processes
    ℓ_b  its NPO loss, (2/β) softplus(β (s_b − s_ref,b));  κ  `temperature`

    This loss is a soft minimum: the smaller the loss of a row, the larger its weight. Most of the
    gradient therefore comes from rows that are already forgotten. The worst case that the name
    promises would be a soft maximum. With κ → ∞, the method is NPO. The reported loss is Σ_b w_b
    ℓ_b, which has the same gradient.

    The authors' code takes the mean over a micro-batch. It sums the tokens of a retain row, which
    gives about 50 times the average over them. Another form of their code, which trains half of the
    rows by NLL, is not available here.

    Literature: the authors add `retain: {term: nll}`. [source: nxZhai/BalDRO@7b338ed
    src/trainer/unlearn]
    """

    family = "preference"
    needs = Needs(
        parts=frozenset({"forget"}),
        logprobs=frozenset({"forget"}),
        statistics=frozenset({"forget"}),
    )
    ranges: ClassVar = {
        "beta": (0.03, 1.0),
        "temperature": (0.1, 100.0),
    }  # ours; β is that of `npo`

    beta: float = setting(0.1, "inverse temperature β of NPO", "ours: that of `npo`", gt=0)
    temperature: float = setting(
        1.0,
        "temperature κ: the larger it is, the more equal are the weights of rows",
        "ours: the code names none, its runs try five",
        gt=0,
    )

    def statistics(self, batch: LossBatch) -> Terms:
        """Return the sum of the rows' weights before they are normalised."""
        return {"weights": self._weights(batch).sum()}

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        weights = self._weights(batch) / batch.statistics["weights"]
        return (weights * self._losses(batch)).sum()

    def _losses(self, batch: LossBatch) -> Tensor:
        """Return the NPO losses ℓ [B]."""
        log_ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob
        return 2 / self.beta * softplus(self.beta * log_ratio)

    def _weights(self, batch: LossBatch) -> Tensor:
        """Return exp((ℓ_ref − ℓ_b) / κ) [B] in float64.

        The loss ℓ_ref of the start model has weight 1. Exponents are clamped to ±700, so that no
        weight overflows, and the weights of all rows together are never 0.
        """
        losses = self._losses(batch).detach().double()
        exponents = (self.value_at_reference() - losses) / self.temperature
        return exponents.clamp(-700, 700).exp()

    def value_at_reference(self) -> float:
        """Return (2/β) log 2: all rows have the same weight."""
        return 2 / self.beta * math.log(2)
