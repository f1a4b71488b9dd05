"""SURE: move only the neurons that matter most for the forget rows."""

from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import Evaluate, Filter, Gradients


class SURE(Filter):
    """Saliency-based unlearning with a large rate: Zhang et al. 2025, arXiv:2410.16454.

    m_j = 1 where ‖f_j(θ_0)‖ is among the largest share `keep`, else 0

    f_j   gradient of the forget loss for the output row j of a matrix, over all forget rows, at the
          start; a number of a vector is a row of its own
    Only a few weights move, but they should move far, so that forgetting outlasts rounding to four
    bits. SURE therefore needs a higher learning rate than usual. The matrix A of a LoRA adapter
    stays unchanged, because its gradient is 0 at the start.
    """

    neutral: ClassVar = {"keep": 1.0}

    ranges: ClassVar = {"keep": (0.05, 0.95)}  # ours

    keep: float = setting(
        0.1,
        "share of the weights that move",
        "zzwjames/FailureLLMUnlearning@10131ae, scripts: above the 90th percentile",
        gt=0,
        le=1,
    )

    def select(self, at: Evaluate) -> Gradients:
        """Select the rows with the largest gradients of the forget loss."""
        return at({"forget"})["forget"].map_(_row_norms).largest(self.keep)


def _row_norms(gradient: Tensor) -> Tensor:
    """Replace each element by the norm of its row. A vector has one element in each row."""
    if gradient.ndim <= 1:
        return gradient.abs()
    norms: Tensor = gradient.flatten(1).norm(dim=1)
    shape = (-1, *[1] * (gradient.ndim - 1))
    return norms.view(shape).expand_as(gradient)
