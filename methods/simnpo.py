"""SimNPO: NPO without a reference model, normalised by length."""

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class SimNPO(Method):
    """SimNPO: Fan et al. 2024, arXiv:2410.07163.

    L = w · (2/β) · mean_b softplus(β · s_b / |b| + γ) = −w · (2/β) · mean_b log σ(−β s_b / |b| − γ)

    b    forget row of |b| answer tokens;  s_b  its summed log-probability
    γ    margin, outside β as in the paper. The authors' code and open-unlearning (as δ) have it
         inside, β · (−s_b / |b| − γ): `scale_gamma`. Both use 0, for which the two forms are equal.
    w    `forget_weight`

    β is far larger than the β of NPO, because it multiplies the log-probability of one token
    instead of all tokens.

    Literature: the authors add a retain term. For TOFU forget10, they use
    `{method: simnpo, forget_weight: 0.125, retain: {term: nll}}`. For forget05, they use β 2.5 and
    a forget weight of 0.1375. [source: OPTML-Group/Unlearn-Simple@f1a355d TOFU/README.md]
    """

    family = "preference"
    needs = Needs(parts=frozenset({"forget"}))
    # Ours, about filyp/open-unlearning@5955f30.
    ranges: ClassVar = {"beta": (1.0, 10.0), "gamma": (0.0, 1.0), "forget_weight": (0.05, 1.0)}

    beta: float = setting(
        4.5,
        "inverse temperature β",
        "OPTML-Group/Unlearn-Simple@f1a355d TOFU/README.md, forget10",
        gt=0,
    )
    gamma: float = setting(
        0.0, "margin γ", "OPTML-Group/Unlearn-Simple@f1a355d TOFU/config/forget.yaml", ge=0
    )
    scale_gamma: bool = setting(
        False, "multiply γ by β, as the code does", "Fan et al. 2024, arXiv:2410.07163"
    )
    forget_weight: float = setting(
        1.0,
        "weight w of the forget loss, relative to a retain term",
        "ours: the loss alone has no retain term; with one, 0.125 and 0.1375 are the authors'",
        gt=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        forget = batch.forget
        margin = self.beta * self.gamma if self.scale_gamma else self.gamma
        mean = forget.mean_rows(forget.token_logprob)  # [B]
        values = 2 / self.beta * softplus(self.beta * mean + margin)
        return self.forget_weight * forget.mean_sequences(values)
