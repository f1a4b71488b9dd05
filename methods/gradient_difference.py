"""Gradient ascent on forget rows, descent on retain rows."""

from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms
from unlearnbench.api.retain_terms import retain_nll


class GradientDifference(Method):
    """Gradient difference: Liu et al. 2022; Maini et al. 2024 (TOFU), section 3.

    L = mean_t log p_t + w · mean_u −log p_u

    t  answer token of a forget row;  u  answer token of a retain row;  w  `retain_weight`
    """

    family = "ascent"
    needs = Needs(parts=frozenset({"forget", "retain"}))
    ranges: ClassVar = {"retain_weight": (0.5, 10.0)}  # ours, about filyp/open-unlearning@5955f30

    retain_weight: float = setting(
        1.0,
        "weight of the retain term",
        "locuslab/tofu dataloader.py; locuslab/open-unlearning@d3d7cf9 "
        "configs/trainer/GradDiff.yaml",
        ge=0,
    )

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        return {
            "forget": -batch.forget.mean_tokens(batch.forget.cross_entropy()),
            "retain": self.retain_weight * retain_nll(batch),
        }
