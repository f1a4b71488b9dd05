"""Zeroth order: estimate the gradient from losses alone."""

import math
from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import ByRole, Evaluate, Gradients, Memory, Perturb, Role, RunStep


class ZerothOrder(Perturb):
    """Gradients from differences of losses: Malladi et al. 2023, arXiv:2305.17333 (MeZO).

    g = 1/n Σ_i (L(θ + μ z_i) − L(θ − μ z_i)) / 2μ · z_i,   z_i ~ N(0, 1), n = `draws`

    L   loss of a role, forget or retain, with the same z_i;  θ  all trained weights
    The mean of g is the gradient. However, g is about √(weights) times longer, so it is shortened
    if gradients are clipped, and it needs many more steps. According to Lang et al. 2025,
    arXiv:2510.00761, forgetting lasts longer with a coarser optimiser. Lang et al. alternate these
    steps with steps by the gradient itself: `gradient_steps: 1`. If you add a modifier of the kind
    `combine`, use several draws. With one draw, both gradients are multiples of the same z.
    """

    ranges: ClassVar = {"mu": (1e-4, 1e-2)}  # ours, about MeZO's 1e-3

    mu: float = setting(1e-3, "standard deviation μ of the offsets", "Malladi et al. 2023", gt=0)
    draws: int = setting(1, "number n of offsets in each step", "Malladi et al. 2023", ge=1)
    gradient_steps: int = setting(
        0, "number of steps with the gradient itself between two of these steps", "ours: none", ge=0
    )

    @property
    def evaluations(self) -> int:
        """Cost of a step in gradients, rounded up.

        Each offset takes two losses, and one more loss is shown. Three losses cost as much as a
        gradient.
        """
        losses = 2 * self.draws + 1
        return math.ceil(losses / 3)

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Estimate gradients without a backward pass, except in steps by the gradient itself."""
        if step.number % (self.gradient_steps + 1):
            return at({"forget", "retain"})
        estimates: dict[Role, Gradients] = {}
        for draw in range(self.draws):
            noise = at.noise(draw)
            offset = noise.copy().scale_(self.mu)
            above = at.losses({"forget", "retain"}, offset)
            below = at.losses({"forget", "retain"}, offset.scale_(-1))
            for role in above:
                slope = (above[role] - below[role]) / (2 * self.mu * self.draws)
                if role in estimates:
                    estimates[role].add_(noise, slope)
                else:
                    estimates[role] = noise.copy().scale_(slope)
        return estimates
