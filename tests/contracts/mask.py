"""Mask: only the weights that matter for the forget rows move."""

import torch
from pydantic import Field
from torch import Tensor

from unlearnbench.api.modifier import Evaluate, Filter, Gradients


class Mask(Filter):
    """A saliency mask: Fan et al. 2024 (SalUn), arXiv:2310.12508.

    A weight moves where |∇L_forget| is above `times` its mean over all weights, at the start.
    """

    times: float = Field(default=1.0, ge=0, description="of the mean [source: ours]")

    def select(self, at: Evaluate) -> Gradients:
        """The gradient of all forget rows, compared with its mean."""
        sizes = at({"forget"})["forget"].map_(torch.abs)
        count = sum(sizes.totals(torch.ones_like).values())
        limit = self.times * sum(sizes.totals(torch.clone).values()) / count

        def moves(size: Tensor) -> Tensor:
            return (size > limit).to(torch.uint8)

        return sizes.map(moves)
