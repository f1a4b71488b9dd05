"""DPO that unlearns by General CE-U (experimental)."""

from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class DPOCEU(Method):
    """DPO-CE-U, experimental: proposed by Yang 2025 (CE-U), arXiv:2503.01224, without experiments.

    L = mean_b sg(w_b) · (−s_w,b + Σ_t∈l CEU_t),   w_b = β · σ(−β Δ_b)
    Δ_b = (s_w − s_ref,w) − (s_l − s_ref,l)

    b         pair of rows with the same forget question: w  a refusal, l  the true answer
    s, s_ref  summed answer log-probability, of the model and of the start model;  sg  detached
    CEU_t     General CE-U of token t of the loser with `score` r: cross entropy against
              r · onehot(y) + (1 − r) · softmax(z with z_y = −∞), the target detached

    The gradient of DPO is w_b · (−∇s_w + ∇s_l). It ascends on the loser's loss, and it becomes
    weaker as the loser becomes more likely. Here, ∇s_l is replaced by ∇Σ_t CEU_t, which is
    strongest where the model is sure of the loser. DPO's own weight w_b stays, which says how far a
    pair is from being learned. The paper does not say how it would weigh and reduce the two parts,
    so this is our choice. The value of the loss is not comparable with DPO's. The weight is that of
    `dpo` without the factor 2/β of NPO's and AltPO's code.

    Literature: there is none. As with DPO, you can add `retain: {term: nll}` or `{term: kl}`.
    [source: ours: no run has been published]
    """

    family = "preference"
    needs = Needs(parts=frozenset({"forget", "refusal"}), logprobs=frozenset({"forget", "refusal"}))
    ranges: ClassVar = {"beta": (0.03, 1.0)}  # ours: that of `npo`

    beta: float = setting(0.1, "inverse temperature β", "ours: that of `dpo`", gt=0)
    score: float = setting(
        0.0, "score r of the loser; 0 unlearns", "Yang 2025, arXiv:2503.01224", ge=0, le=1
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        forget = batch.forget
        win = batch.refusal.sequence_logprob  # [B]
        # Read before CE-U, so that both share one pass over the logits.
        lose = forget.sequence_logprob
        gain_of_win = win - batch.reference.refusal.sequence_logprob
        gain_of_lose = lose - batch.reference.forget.sequence_logprob
        margin = gain_of_win - gain_of_lose  # Δ
        weight = (self.beta * (-self.beta * margin).sigmoid()).detach()
        unlearned = forget.sum_rows(forget.unified_cross_entropy(self.score))  # [B]
        return forget.mean_sequences(weight * (unlearned - win))
