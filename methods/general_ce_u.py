"""General CE-U: one cross entropy that learns, unlearns, or anything between, by a score."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator
from torch import Tensor

from unlearnbench.losses import mean_over_union
from unlearnbench.method import LossBatch, Method, Needs


class GeneralCEU(Method):
    """General CE-U: Yang 2025, the generalisation of CE-U by a score per token.

    L = mean_t −Σ_v a_tv log p_tv,   a_t = r · onehot(y) + (1 − r) · q_t

    q_t  softmax of the logits with z_ty = −∞, detached;  r  score of the row: 1 learns, 0 unlearns
    The mean is over the tokens of forget and retain rows together, so each weighs by its tokens.

    With `raw`, a score takes the place of z_ty itself: r = σ(score − log Σ_{v≠y} exp z_tv), where
    +inf learns and −inf unlearns. (The paper's listing sends −inf to the learning target as well;
    here it unlearns, as its text says.) Without `raw` the score does not depend on the scale of
    the logits, which is why that is the default.
    """

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget", "retain"}))

    ignore_first_answer_tokens: int = Field(
        default=1,
        ge=0,
        description="first tokens of each forget row's answer that the loss does not see",
    )
    forget_score: float = Field(
        default=0.0, allow_inf_nan=True, description="score of the forget rows; 0 unlearns"
    )
    retain_score: float = Field(
        default=1.0, allow_inf_nan=True, description="score of the retain rows; 1 learns"
    )
    raw: bool = Field(default=False, description="scores are logits (+inf learns, -inf unlearns)")

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        for name in ("forget_score", "retain_score"):
            score = getattr(self, name)
            if not self.raw and not 0 <= score <= 1:
                raise ValueError(f"{name} must lie in [0, 1] unless raw is true, got {score}")
        return self

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        forget, retain = batch.forget, batch.retain
        return mean_over_union(
            (forget, forget.unified_cross_entropy(self.forget_score, raw=self.raw)),
            (retain, retain.unified_cross_entropy(self.retain_score, raw=self.raw)),
        )
