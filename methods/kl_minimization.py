"""Gradient ascent, close to the start model on retain rows."""

from collections.abc import Mapping
from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms
from unlearnbench.api.retain_terms import retain_kl


class KLMinimization(Method):
    """KL minimisation: Maini et al. 2024 (TOFU), section 3.

    L = mean_t log p_t + w · mean_u KL(p_ref,u ‖ p_u)

    t  answer token of a forget row;  u  answer token of a retain row;  p_ref  frozen start model

    The KL is only over answer tokens and EOS. TOFU's code also averages it over prompt and padding,
    so the strength of a weight depends on the padded length there.
    """

    family = "ascent"
    needs = Needs(parts=frozenset({"forget", "retain"}), distributions=frozenset({"retain"}))
    ranges: ClassVar = {"retain_weight": (0.5, 10.0)}  # ours: that of `gradient-difference`

    retain_weight: float = setting(
        1.0, "weight of the retain rows' KL", "locuslab/tofu dataloader.py", ge=0
    )

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        return {
            "forget": -batch.forget.mean_tokens(batch.forget.cross_entropy()),
            "retain": self.retain_weight * retain_kl(batch),
        }

    def value_at_reference(self) -> Mapping[str, float]:
        """Return a divergence of 0."""
        return {"retain": 0.0}
