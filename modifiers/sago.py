"""SAGO: where the signs differ, follow the retain gradient."""

from typing import Literal

import torch
from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import ByRole, Combine, Gradients, Memory, RunStep


class SAGO(Combine):
    """Sign-aware gradient surgery, weight by weight: Xiao et al. 2026, arXiv:2604.14808.

    g_i = r_i                          where f_i · r_i < 0
    g_i = f_i, or f_i + r_i (`agree`)  elsewhere

    f, r   gradients of the forget and of the retain loss, each with its weight
    [source: sustech-nlp/SAGO@2363ee7 src/trainer/unlearn/grad_surgery.py]
    """

    agree: Literal["forget", "sum"] = setting(
        "forget", "gradient where the signs do not differ", "sustech-nlp/SAGO@2363ee7, sago"
    )

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Return the retain gradient's elements where the signs differ, see `agree` elsewhere."""
        return gradients["forget"].map_(self._by_sign, gradients["retain"])

    def _by_sign(self, forget: Tensor, retain: Tensor) -> Tensor:
        agreed = forget + retain if self.agree == "sum" else forget
        return torch.where(forget.sign() * retain.sign() < 0, retain, agreed)
