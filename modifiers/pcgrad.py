"""PCGrad: remove the forget gradient's part against the retain gradient."""

from typing import Literal

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import ByRole, Combine, Gradients, Memory, RunStep


class PCGrad(Combine):
    """Gradient surgery of the forget gradient: Yu et al. 2020, arXiv:2001.06782.

    g = f − min(⟨f, r⟩, 0) / ‖r‖² · r + r

    f, r   gradients of the forget and of the retain loss, each with its weight

    The paper projects both gradients onto each other. Here, the retain gradient stays whole, as in
    earlier work on unlearning. [source: sustech-nlp/SAGO@2363ee7
    src/trainer/unlearn/grad_surgery.py]
    """

    per: Literal["model", "weight"] = setting(
        "model",
        "whether inner products are over the whole model or over each weight",
        "sustech-nlp/SAGO@2363ee7, pcgrad_global",
    )

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Return the sum of the projected forget gradient and the retain gradient."""
        forget = gradients["forget"]
        retain = gradients["retain"]
        products = forget.dots(retain)  # by weight
        square_norms = retain.dots(retain)
        if self.per == "model":
            products = dict.fromkeys(products, sum(products.values()))
            square_norms = dict.fromkeys(square_norms, sum(square_norms.values()))
        for name, square_norm in square_norms.items():
            conflict = min(products[name], 0.0)
            share = 1 - conflict / square_norm if square_norm else 1.0
            forget.tensors[name].add_(retain.tensors[name], alpha=share)
        return forget
