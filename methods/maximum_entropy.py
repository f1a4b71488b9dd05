"""Maximum entropy: make every token equally likely."""

from typing import ClassVar, Literal

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class MaximumEntropy(Method):
    """ME: Yuan et al. 2025, «A closer look at machine unlearning», arXiv:2410.08109.

    L = w · mean_t KL(U ‖ p_t),   KL(U ‖ p_t) = −(1/V) Σ_v log p_tv − log V

    t  answer token of a forget row, with `where: all` also of its question
    U  uniform over the V tokens;  w  `forget_weight`

    The gradient is p_t − 1/V. It is bounded, and it is 0 only where no token is preferred.

    The released script for TOFU also averages over question and padding (`mask: false`). At the
    same weight, an answer token then counts about ten times less. `where: all` leaves padding out.

    Literature: the authors use `{method: maximum-entropy, forget_weight: 0.1, retain: {term: nll}}`
    at 1.0e-5 for 5 epochs in batches of 32. [source: sail-sg/closer-look-LLM-unlearning
    scripts/tofu/me_gd.sh]
    """

    family = "target distribution"
    needs = Needs(parts=frozenset({"forget"}))
    ranges: ClassVar = {"forget_weight": (0.05, 1.0)}  # ours: the authors have 0.1 and 0.5

    where: Literal["answer", "all"] = setting(
        "answer", "tokens that count", "Yuan et al. 2025, arXiv:2410.08109; `all` is its script's"
    )
    forget_weight: float = setting(
        1.0,
        "weight w of the forget loss, relative to a retain term",
        "ours: the loss alone has no retain term; with one, 0.1 is the authors' on TOFU",
        gt=0,
    )

    def needed(self) -> Needs:
        """Return the needs, with whole rows for `where: all`."""
        return Needs(parts=frozenset({"forget" if self.where == "answer" else "whole"}))

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        rows = batch.forget if self.where == "answer" else batch.whole
        return self.forget_weight * rows.mean_tokens(rows.kl_from_uniform)
