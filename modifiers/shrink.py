"""Shrink: make weights smaller and add noise before the first step."""

from typing import ClassVar

import torch

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import Evaluate, WeightEdit


class Shrink(WeightEdit):
    """Damaged weights before the first step, after UNDO: Lee et al. 2025, arXiv:2506.06278.

    θ ← (1 − α) θ + α β n,   n ~ N(0, 2 / (inputs + outputs)) in matrices, 0 in vectors

    α, β   `share` and `noise`
    The training then restores what the loss keeps. For example, kl-minimization learns again from
    the unchanged start model, on the split's retain rows. This is our own form: the authors distil
    an unlearned model on a corpus, with uniform noise of the same variance. With adapters, only the
    adapters are shrunk.
    """

    neutral: ClassVar = {"share": 0.0}

    ranges: ClassVar = {"share": (0.05, 0.6)}  # ours

    share: float = setting(
        0.25,
        "share of the weights that is lost",
        "AddieFoote/distillation-robustify-unlearning@edbf111, WMDP",
        ge=0,
        le=1,
    )
    noise: float = setting(
        0.0,
        "scale of the noise",
        "AddieFoote/distillation-robustify-unlearning@edbf111, WMDP; language and arithmetic 0.1",
        ge=0,
    )

    def before(self, at: Evaluate) -> None:
        """Shrink all trained weights, and add noise to matrices."""
        weights = at.weights
        # Numbers of elements in all shards. A process may have only some rows of a matrix.
        sizes = weights.totals(torch.ones_like)
        noise = at.noise(0).tensors if self.noise else {}
        weights.scale_(1 - self.share)
        if not noise:
            return
        for name, tensor in weights.tensors.items():
            if tensor.ndim == 2:
                inputs = tensor.shape[1]
                outputs = sizes[name] / inputs
                deviation = (2 / (inputs + outputs)) ** 0.5
                tensor.add_(noise[name], alpha=self.share * self.noise * deviation)
