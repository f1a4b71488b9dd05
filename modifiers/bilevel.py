"""Bilevel: remove the retain gradient's part along the forget gradient."""

from unlearnbench.api.modifier import ByRole, Combine, Gradients, Memory, RunStep


class Bilevel(Combine):
    """Bi-level unlearning, there called BLUR: Reisizadeh et al. 2025, arXiv:2506.08164.

    g = f + r − ⟨r, f⟩ / ‖f‖² · f

    f, r   gradients of the forget and of the retain loss, each with its weight

    Forgetting comes first: the retain gradient always loses its part along f, and not only if the
    two gradients conflict. A weight γ of the forget term is the weight in the paper's rule.
    [source: OptimAI-Lab/BLURLLMUnlearning@075f00e MUSE/baselines/baselines/iterative.py]
    """

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Return the sum, without the part of the retain gradient along the forget gradient."""
        forget = gradients["forget"]
        retain = gradients["retain"]
        product = forget.dot(retain)
        square_norm = forget.dot(forget)
        share = 1 - product / square_norm if square_norm else 1.0
        return forget.scale_(share).add_(retain)
