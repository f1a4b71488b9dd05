"""SalUn: move only the weights that matter most for the forget rows."""

from typing import ClassVar

import torch

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import Evaluate, Filter, Gradients


class SalUn(Filter):
    """A mask by the size of the forget gradient: Fan et al. 2024, arXiv:2310.12508.

    m_i = 1 where |f_i(θ_0)| is among the largest share `keep`, else 0

    f   gradient of the forget loss over all forget rows, at the start
    The matrix A of a LoRA adapter stays unchanged, because its gradient is 0 at the start.
    """

    neutral: ClassVar = {"keep": 1.0}

    ranges: ClassVar = {"keep": (0.05, 0.95)}  # ours

    keep: float = setting(
        0.5, "share of the weights that move", "Fan et al. 2024: the median", gt=0, le=1
    )

    def select(self, at: Evaluate) -> Gradients:
        """Select the weights with the largest gradients of the forget loss."""
        return at({"forget"})["forget"].map_(torch.abs).largest(self.keep)
