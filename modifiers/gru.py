"""GRU: let no update point against the mean retain gradient."""

from typing import ClassVar, Literal

import torch

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import ByRole, Combine, Gradients, Memory, RunStep


class GRU(Combine):
    """Gradient rectified unlearning: Wang et al. 2025, arXiv:2503.09117.

    g = u − min(⟨u, m⟩, 0) / ‖m‖² · m

    r   gradient of the retain loss
    m   its running mean ν r + (1 − ν) m, from 0; its length is too small at first, which changes
        nothing, because the projection is the same for every length of m
    u   `update`: the gradient of the forget loss, or of the whole loss
    ν   `new`

    With `update: forget`, as in the paper, the retain loss is only a constraint, and no step
    follows its gradient.
    """

    ranges: ClassVar = {"new": (0.5, 1.0)}  # ours

    new: float = setting(
        0.8,
        "weight ν of a step's retain gradient",
        "tmlr-group/GRU@fbbf93a dataloader_faster_refactor1.py",
        gt=0,
        le=1,
    )
    update: Literal["forget", "sum"] = setting(
        "forget", "gradient that is constrained", "Wang et al. 2025, arXiv:2503.09117"
    )

    def memory(self, weights: Gradients) -> Memory:
        """Return the mean of retain gradients, which begins at 0."""
        return {"mean": weights.map(torch.zeros_like)}

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Return the update without its part against the mean."""
        update = gradients["forget"]
        retain = gradients["retain"]
        mean = memory["mean"]
        mean.scale_(1 - self.new).add_(retain, self.new)
        if self.update == "sum":
            update.add_(retain)
        conflict = min(update.dot(mean), 0.0)
        square_norm = mean.dot(mean)
        if not square_norm:
            return update
        return update.add_(mean, -conflict / square_norm)
