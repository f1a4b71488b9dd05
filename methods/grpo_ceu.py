"""GRPO that unlearns bad samples by CE-U (experimental)."""

from torch import Tensor

from unlearnbench.api.method import LossBatch

from .grpo import GRPO


class GRPOCEU(GRPO):
    """GRPO with CE-U: proposed in Yang 2025 (CE-U), without experiments; experimental.

    L = mean_i |A_i| · mean_t −Σ_v a_itv log p_itv  +  β · mean_i mean_t (exp(d_it) − d_it − 1)
    a_it = onehot(y_it) where A_i > 0, else q_it = softmax(z_it with z_ity = −∞), detached

    i, t, A_i, d_it, R_i  as in `grpo`;  z_it  logits [V];  y_it  the token that was sampled

    Samples that are better than their group have the gradient of GRPO, −A_i · ∂log p/∂z. For worse
    samples, GRPO uses gradient ascent, which is strongest on tokens that are already improbable.
    Here, General CE-U with score 0 replaces it. Its gradient, |A_i| · (p − q), is strongest on
    tokens that are probable. The paper leaves open how scores come from rewards. Here, the sign of
    the advantage decides the score, and its size is the weight. The KL term keeps its own form.
    """

    def policy(self, batch: LossBatch, advantage: Tensor) -> Tensor:
        """Return the term that the advantages [B] weigh."""
        score = (advantage > 0).to(advantage.dtype)  # [B]; 1 learns, 0 unlearns
        losses = batch.sample.mean_rows(batch.sample.unified_cross_entropy(score))
        return batch.sample.mean_sequences(advantage.abs() * losses)
