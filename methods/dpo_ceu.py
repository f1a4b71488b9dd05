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
    s, s_ref  summed answer log-probability, policy and frozen start;  sg  detached
    CEU_t     General CE-U of token t of the loser with `score` r: cross entropy against
              r · onehot(y) + (1 − r) · softmax(z with z_y = −∞), the target detached
    DPO's gradient is w_b · (−∇s_w + ∇s_l): it ascends on the loser's loss, by less and less the
    likelier the loser is. Here ∇s_l is replaced by ∇Σ_t CEU_t, which is strongest where the loser
    is sure; how far a pair is from being learned, w_b, is DPO's own. How the paper would
    weigh and reduce this it does not say: that is ours. The value is not comparable with DPO's.
    The weight is that of `dpo` without the factor 2/β of NPO's and AltPO's code.

    Literature: none; as with DPO, `retain: {term: nll}` or `{term: kl}` can be added.
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
        forget, reference = batch.forget, batch.reference
        win = batch.refusal.sequence_logprob  # [B]
        lose = forget.sequence_logprob  # before CE-U, which then shares its pass over the logits
        gap = win - reference.refusal.sequence_logprob
        gap = gap - (lose - reference.forget.sequence_logprob)
        weight = (self.beta * (-self.beta * gap).sigmoid()).detach()
        unlearned = forget.sum_rows(forget.unified_cross_entropy(self.score))  # [B]
        return forget.mean_sequences(weight * (unlearned - win))
