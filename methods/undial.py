"""UNDIAL: distil the model, with a lower logit for the true token."""

from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class UNDIAL(Method):
    """UNDIAL: Dong et al. 2024, arXiv:2402.10052.

    L = mean_t KL(a_t ‖ p_t),   a_t = softmax(z_ref,t − β · onehot(y_t))

    t   answer token of a forget row;  y_t  its label;  z_ref,t  logits [V] of the start model
    p_t  the model's distribution;  β  amount by which the true logit is lowered

    The paper's loss is the cross entropy −Σ_v a_tv log p_tv. Its gradient p − a is the same. Its
    value is larger by the entropy of a_t, which does not change, so the minimum here is 0. Only
    answer tokens count. Both known implementations also average over prompt and padding. The one of
    open-unlearning uses the label −100 of these positions as an index, which penalises an unrelated
    token there.

    Literature: the authors use no retain term. They suggest β in {3, 10, 30}, and LoRA (rank 8, α
    16) at a rate of 1e-4 in batches of 32. [source: locuslab/open-unlearning@d3d7cf9
    community/methods/UNDIAL/README.md]
    """

    family = "target distribution"
    needs = Needs(parts=frozenset({"forget"}), distributions=frozenset({"forget"}))
    learning_rate = 1e-4  # locuslab/open-unlearning@d3d7cf9 configs/trainer/UNDIAL.yaml
    ranges: ClassVar = {"beta": (3.0, 30.0)}  # filyp/open-unlearning@5955f30

    beta: float = setting(
        10.0,
        "amount β by which true logits are lowered",
        "locuslab/open-unlearning@d3d7cf9 configs/trainer/UNDIAL.yaml",
        gt=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        divergence = batch.forget.kl_from(batch.reference.forget, lowered=self.beta)  # [N]
        return batch.forget.mean_tokens(divergence)
