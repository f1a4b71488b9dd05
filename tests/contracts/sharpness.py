"""Sharpness: forget at the weights where forgetting is hardest nearby."""

from pydantic import Field

from unlearnbench.api.modifier import ByRole, Evaluate, Memory, Perturb, RunStep


class Sharpness(Perturb):
    """Sharpness-aware minimisation of what is forgotten: Fan et al. 2025, arXiv:2502.05374.

    g = ∇L_forget(θ + rho · ∇L_forget(θ) / ‖∇L_forget(θ)‖) + ∇L_retain(θ)
    """

    rho: float = Field(default=0.01, ge=0, description="length of the offset [source: ours]")

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Two evaluations of the forget rows, one of the retain rows."""
        plain = at({"forget", "retain"})
        offset = plain["forget"].unit().scale_(self.rho)
        return {**plain, **at({"forget"}, offset)}
