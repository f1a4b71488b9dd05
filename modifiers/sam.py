"""SAM: take the forget gradient at nearby weights that forget least."""

from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import ByRole, Evaluate, Memory, Perturb, RunStep


class SAM(Perturb):
    """Sharpness-aware minimisation of what is forgotten: Fan et al. 2025, arXiv:2502.05374.

    g = f(θ + ρ f(θ) / ‖f(θ)‖) + r(θ)

    f, r   gradients of the forget and of the retain loss;  θ  all trained weights
    ρ is a length over all trained weights. The same ρ therefore moves each weight of a larger model
    less. With adapters, only their weights are moved.
    """

    neutral: ClassVar = {"rho": 0.0}

    ranges: ClassVar = {"rho": (0.001, 0.1)}  # ours, about the authors' 0.01

    rho: float = setting(
        0.01, "length ρ of the offset", "OPTML-Group/Unlearn-Smooth@fc655ba, MUSE and WMDP", ge=0
    )

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Evaluate the forget rows twice, and the retain rows once."""
        plain = at({"forget", "retain"})
        norm = plain["forget"].norm()
        # In place, because the plain forget gradient is not read again.
        offset = plain["forget"].scale_(self.rho / norm if norm else 0.0)
        return {**plain, **at({"forget"}, offset)}
