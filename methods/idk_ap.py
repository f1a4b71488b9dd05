"""IDK that prefers answers to refusals on retain questions."""

from typing import ClassVar

from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms


class IDKAP(Method):
    """IDK+AP: Yuan et al. 2025, «A closer look at machine unlearning», arXiv:2410.08109.

    L = mean_t −log p_t + w · (1/β) · mean_r softplus(β · (s_i − s_a))

    t         answer token of a forget question with a refusal
    r         retain question: a  its answer, i  a refusal in the place of its answer
    s_a, s_i  their summed log-probabilities;  w  `retain_weight`

    The second term is called answer preservation. Unlike a likelihood, it does not reward a model
    for answers that the model already prefers to refusals.

    Literature: this method has its own retain term, so add no other one. The authors use β 0.1 and
    train at 1.0e-5 for 5 epochs in batches of 32. [source: sail-sg/closer-look-LLM-unlearning]
    """

    family = "refusal"
    needs = Needs(parts=frozenset({"refusal", "retain", "retain_refusal"}))
    ranges: ClassVar = {"beta": (0.03, 1.0), "retain_weight": (0.5, 10.0)}  # ours

    beta: float = setting(0.1, "inverse temperature β", "Yuan et al. 2025, arXiv:2410.08109", gt=0)
    retain_weight: float = setting(
        1.0, "weight w of the retain rows", "Yuan et al. 2025, arXiv:2410.08109", ge=0
    )

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        retain = batch.retain
        margin = batch.retain_refusal.sequence_logprob - retain.sequence_logprob  # [B]
        preference = retain.mean_sequences(softplus(self.beta * margin) / self.beta)
        return {
            "forget": batch.refusal.mean_tokens(batch.refusal.cross_entropy()),
            "retain": self.retain_weight * preference,
        }
