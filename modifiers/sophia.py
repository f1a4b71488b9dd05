"""Sophia: divide steps by a running curvature, and clip them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import OptimizerKind

_CODE = "OPTML-Group/SOUL@30f7a41 src/optim/sophia.py"


class Sophia(OptimizerKind):
    """Sophia: Liu et al. 2023, arXiv:2305.14342; for unlearning SOUL, Jia et al. 2024.

    Δθ = −η (clip(m / max(ρ B h, ε), 1) + λ θ)

    m   running mean of the gradient, β₁ m + (1 − β₁) g;  h  of its square, with β₂; both from 0
    η   learning rate;  λ  weight decay;  ρ  `rho`;  B  `scale`;  ε = 1e-15
    For h, SOUL's code (arXiv:2404.18239) takes the gradient of the loss, as here, and not the
    gradient on labels that the model samples. It moves m twice in a step, which squares its β₁. Its
    ρ B is 205, so every |g| below 5e-3 is clipped. This is nearly every gradient, so the step is a
    sign.
    """

    rho: float = setting(0.04, "factor ρ of the curvature", _CODE, gt=0)
    scale: float = setting(
        5120.0,
        "factor B of the curvature, in the paper the number of tokens in a batch",
        _CODE,
        gt=0,
    )
    beta1: float = setting(0.965, "weight β₁ of earlier gradients", "Liu et al. 2023", ge=0, lt=1)
    beta2: float = setting(0.99, "weight β₂ of earlier squares", "Liu et al. 2023", ge=0, lt=1)

    def make(
        self, weights: Mapping[str, nn.Parameter], rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """Return the optimiser, with one group of all weights."""
        return _Sophia(weights.values(), rate, decay, self)


class _Sophia(torch.optim.Optimizer):
    """The optimiser of `Sophia`."""

    def __init__(self, weights: Any, lr: float, weight_decay: float, settings: Sophia) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})
        self.settings = settings

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move each weight that has a gradient."""
        settings = self.settings
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                    state["square"] = torch.zeros_like(weight)
                mean = state["mean"].lerp_(weight.grad, 1 - settings.beta1)
                square = state["square"].lerp_(weight.grad.square(), 1 - settings.beta2)
                curvature = (settings.rho * settings.scale * square).clamp_(min=1e-15)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_((mean / curvature).clamp_(-1, 1), alpha=group["lr"])
