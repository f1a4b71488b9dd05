"""Projection: forget only as far as the retain rows do not object."""

from unlearnbench.api.modifier import ByRole, Combine, Gradients, Memory, RunStep


class Projection(Combine):
    """Gradient surgery of one of two tasks: Yu et al. 2020 (PCGrad), arXiv:2001.06782.

    g = f − min(⟨f, r⟩, 0) / ‖r‖² · r + r,   f, r gradients of forget and of retain rows
    """

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Without the part of the forget gradient that points against the retain gradient."""
        forget, retain = gradients["forget"], gradients["retain"]
        conflict, size = min(forget.dot(retain), 0.0), retain.dot(retain)
        return forget.add_(retain, 1 - conflict / size if size else 1.0)
