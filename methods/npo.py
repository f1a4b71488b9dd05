"""Negative preference optimisation: DPO without a winner."""

import math
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class NPO(Method):
    """NPO: Zhang et al. 2024, arXiv:2404.05868, equation 3.

    L = (2/β) · mean_b log(1 + (π_b / π_ref,b)^β) = (2/β) · mean_b softplus(β · (s_b − s_ref,b))

    b      forget row;  s_b, s_ref,b  its summed answer log-probability, of the model and of the
           frozen start model
    β → 0  recovers gradient ascent on the summed log-probability
    """

    family = "preference"
    needs = Needs(parts=frozenset({"forget"}), logprobs=frozenset({"forget"}))
    ranges: ClassVar = {"beta": (0.03, 1.0)}  # ours, about filyp/open-unlearning@5955f30

    beta: float = setting(
        0.1,
        "inverse temperature β: the larger it is, the sooner a forgotten answer is left alone",
        "licong-lin/negative-preference-optimization@1207bbe TOFU/config/forget.yaml",
        gt=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        log_ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob  # [B]
        return batch.forget.mean_sequences(2 / self.beta * softplus(self.beta * log_ratio))

    def value_at_reference(self) -> float:
        """Return the value at a log-ratio of 0: (2/β) log 2."""
        return 2 / self.beta * math.log(2)
