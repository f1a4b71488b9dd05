"""Smoothing: average the forget gradient over random weights nearby."""

from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import ByRole, Evaluate, Memory, Perturb, RunStep


class Smoothing(Perturb):
    """Randomised smoothing of what is forgotten: Fan et al. 2025, arXiv:2502.05374.

    g = 1/n Σ_i f(θ + σ z_i) + r(θ),   z_i ~ N(0, 1), n = `draws`

    f, r   gradients of the forget and of the retain loss;  θ  all trained weights
    """

    neutral: ClassVar = {"sigma": 0.0}

    ranges: ClassVar = {"sigma": (1e-5, 1e-3)}  # ours, about the authors' 1e-4

    sigma: float = setting(
        1e-4, "standard deviation σ of the offsets", "OPTML-Group/Unlearn-Smooth@fc655ba", ge=0
    )
    draws: int = setting(
        3, "number n of offsets in each step", "OPTML-Group/Unlearn-Smooth@fc655ba", ge=1
    )

    @property
    def evaluations(self) -> int:
        """One evaluation for each offset, and one at the weights for the loss that is shown."""
        return self.draws + 1

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Evaluate the forget rows at each offset, and the retain rows once."""
        gradient, *others = (
            at({"forget"}, at.noise(draw).scale_(self.sigma))["forget"]
            for draw in range(self.draws)
        )
        for other in others:
            gradient.add_(other)
        return {**at({"retain"}), "forget": gradient.scale_(1 / self.draws)}
