"""DPO: prefer a refusal to the true answer."""

import math
from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.method import LossBatch, Method, Needs


class DPO(Method):
    """DPO: Rafailov et al. 2023, arXiv:2305.18290, equation 7, with TOFU's refusals as winners.

    L = −k · mean_b log σ(β · ((s_w − s_ref,w) − (s_l − s_ref,l)))

    b         pair of rows with the same forget question: w  a refusal, l  the true answer
    s, s_ref  summed answer log-probability [B], of the model and of the frozen start model
    k         1, as in equation 7, or 2/β with `scaled: true`, as in the code of NPO and AltPO and
              in open-unlearning. At β 0.1, 2/β is 20. Learning rates and retain weights belong to
              one of the two conventions. `altpo` scales by default, and `dpo` does not. Set
              `scaled` in both to compare them.

    Literature: the authors of AltPO run this with 2/β, β 0.1 and a retain term,
    `{method: dpo, scaled: true, retain: {term: nll}}` at 2.0e-5 for 10 epochs.
    [source: molereddy/Alternate-Preference-Optimization@c9b78bd README.md (IdkDPO), dataloader.py]
    """

    family = "preference"
    needs = Needs(parts=frozenset({"forget", "refusal"}), logprobs=frozenset({"forget", "refusal"}))
    ranges: ClassVar = {"beta": (0.03, 1.0)}  # ours: that of `npo`

    beta: float = setting(
        0.1,
        "inverse temperature β",
        "locuslab/open-unlearning@d3d7cf9 configs/trainer/DPO.yaml",
        gt=0,
    )
    scaled: Annotated[bool, IF_SET] = setting(
        False,
        "multiply the loss by 2/β",
        "Rafailov et al. 2023, arXiv:2305.18290, equation 7: no factor",
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        reference = batch.reference
        win = batch.refusal.sequence_logprob - reference.refusal.sequence_logprob  # [B]
        lose = batch.forget.sequence_logprob - reference.forget.sequence_logprob  # [B]
        return batch.forget.mean_sequences(self._scale * softplus(-self.beta * (win - lose)))

    def value_at_reference(self) -> float:
        """Return the value at a margin of 0: log 2 times the scale."""
        return self._scale * math.log(2)

    @property
    def _scale(self) -> float:
        return 2 / self.beta if self.scaled else 1.0
