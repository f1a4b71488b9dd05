"""CE-U: learn the model's prediction without the true token."""

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class CEU(Method):
    """Cross Entropy Unlearning: Yang 2025, the loss of CE-U.

    L = mean_t −Σ_v q_tv log p_tv,   q_t = softmax(z_t with z_ty = −∞), detached

    t  scored answer token of a forget row;  z_t  its logits [V];  y  its label;  p_t = softmax(z_t)

    The gradient ∂L/∂z = p − q vanishes as p_y → 0 and grows as p_y → 1. Gradient ascent does the
    opposite. The gradient equals that of token-level unlikelihood, −log(1 − p_y). The paper leaves
    out the tokens of the template and the first answer token, and so do the default settings.
    """

    family = "target distribution"
    needs = Needs(parts=frozenset({"forget"}))

    ignore_first_answer_tokens: int = setting(
        1,
        "number of first tokens that the loss ignores in the answer of each forget row; above 0, "
        "the loss also ignores the label that a template puts before the answer "
        "(training.ignore_label)",
        "Yang 2025, arXiv:2503.01224; locuslab/open-unlearning@d3d7cf9 configs/trainer/CEU.yaml",
        ge=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        return batch.forget.mean_tokens(batch.forget.unlearning_cross_entropy)
