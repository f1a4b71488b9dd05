"""Sign: move every weight by the same amount, the learning rate."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import OptimizerKind


class Sign(OptimizerKind):
    """Sign descent with momentum: Bernstein et al. 2018, arXiv:1802.04434 (Signum).

    Δθ = −η (sign(m) + λ θ)

    m   running mean of the gradient, μ m + (1 − μ) g, from 0
    η   learning rate;  λ  weight decay;  μ  `momentum`

    According to Lang et al. 2025, arXiv:2510.00761, forgetting lasts longer with a coarser
    optimiser. sign(m) is also the sign of Adam's step. With μ = 0, this is sign descent.
    """

    momentum: float = setting(
        0.9, "weight μ of earlier gradients", "Bernstein et al. 2018", ge=0, lt=1
    )

    def make(
        self, weights: Mapping[str, nn.Parameter], rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """Return the optimiser, with one group of all weights."""
        return _Signum(weights.values(), rate, decay, self.momentum)


class _Signum(torch.optim.Optimizer):
    """The optimiser of `Sign`."""

    def __init__(self, weights: Any, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move each weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                mean = state["momentum"]
                mean.lerp_(weight.grad, 1 - self.momentum)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(mean.sign(), alpha=-group["lr"])
