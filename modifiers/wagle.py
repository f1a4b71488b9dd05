"""WAGLE: move weights that matter for forget rows, not for retain rows."""

from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import Evaluate, Filter, Gradients


class WAGLE(Filter):
    """A mask by weight attribution: Jia et al. 2024, arXiv:2410.17509.

    m_i = 1 where |(θ_i − r_i / μ) · f_i| is among the largest share `keep`, else 0

    f, r   gradients of the forget and of the retain loss over all rows of an epoch, at the start
    [source: OPTML-Group/WAGLE@31275e8 src/unlearn/generate_mask.py]
    """

    two_roles = True
    neutral: ClassVar = {"keep": 1.0}
    tried: ClassVar = {"keep": 0.5}

    ranges: ClassVar = {"keep": (0.05, 0.95)}  # ours

    keep: float = setting(
        0.95, "share of the weights that move", "OPTML-Group/WAGLE@31275e8, TOFU", gt=0, le=1
    )
    mu: float = setting(1e-6, "curvature μ of the retain loss", "OPTML-Group/WAGLE@31275e8", gt=0)

    def select(self, at: Evaluate) -> Gradients:
        """Select the weights with the largest attributions."""
        by_role = at({"forget", "retain"})
        scores = by_role["forget"].map_(self._attribution, by_role["retain"], at.weights)
        return scores.largest(self.keep)

    def _attribution(self, forget: Tensor, retain: Tensor, weight: Tensor) -> Tensor:
        return ((weight - retain / self.mu) * forget).abs()
