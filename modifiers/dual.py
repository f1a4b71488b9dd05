"""Dual: one AdamW for forgetting, another for retaining."""

from collections.abc import Mapping

import torch
from torch import nn

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import OptimizerKind


class Dual(OptimizerKind):
    """Two AdamW with moments of their own, as in DualOptim: Zhong et al. 2025, arXiv:2504.15827.

    θ ← θ + Δ(f);   θ ← θ + Δ(r)

    f, r  gradients of the forget and of the retain loss;  Δ  AdamW's step by its own m and v
    In a single AdamW, the larger gradients of one role set the scale of the other role's steps.
    Here, both optimisers take a step in each step of the run, with the run's learning rate and
    weight decay. The authors' code alternates one forget step with five retain steps, and scales
    the learning rate of the forget steps.
    """

    two_roles = True

    beta2: float = setting(
        0.999, "weight of earlier squares", "CityU-MLO/DualOptim@a95ef74 LLM/trainer", ge=0, lt=1
    )

    def make(
        self, weights: Mapping[str, nn.Parameter], rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """Return AdamW. It is made once for each role."""
        betas = (0.9, self.beta2)
        return torch.optim.AdamW(weights.values(), rate, betas=betas, weight_decay=decay)
