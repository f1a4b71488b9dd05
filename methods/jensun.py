"""JensUn: learn a refusal by the Jensen-Shannon divergence."""

import math
from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms

_PAPER = "Singh et al. 2025, arXiv:2509.02820"
_CODE = "nmndeep/JensUn-Unlearning@925e221 src/trainer"


class JensUn(Method):
    """JensUn: Singh et al. 2025, arXiv:2509.02820.

    L = w · mean_t JSD(p_t, onehot(u_t)) + α · mean_r JSD(p_r, p_ref,r)

    JSD(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m),   m = ½ (p + q);   at most log 2
    t    answer token of a forget row;  u_t  the token of `target` in its place, again and again
    r    answer token of a retain row;  p_ref  distribution of the frozen start model
    w    `forget_weight`;  α  `retain_weight`

    Let p be p_t(u_t). Then the first divergence is log 2 + ½ (p log p − (1 + p) log(1 + p)). Its
    gradient goes to 0 with p, so a target that the model considers impossible is not learned.

    The released code puts probability 1 on each token of the target in every position, including
    those of question and padding, and clamps at 1e-9. In that code, the rows' own tokens do not
    matter at all.

    Literature: this method has its own retain term, so add no other one. The authors use w = α = 1,
    a rate of 8.0e-6 and 10 epochs. [source: nmndeep/JensUn-Unlearning@925e221 configs]
    """

    family = "refusal"
    needs = Needs(parts=frozenset({"forget", "retain"}), distributions=frozenset({"retain"}))
    learning_rate = 8e-6  # nmndeep/JensUn-Unlearning@925e221 configs
    ranges: ClassVar = {"forget_weight": (0.1, 10.0)}  # ours

    target: str = setting(" No idea", "text whose tokens are learned in place of answers", _CODE)
    forget_weight: float = setting(1.0, "weight w of the forget rows", _CODE, gt=0)
    retain_weight: float = setting(1.0, "weight α of the retain rows", _CODE, ge=0)

    def needed(self) -> Needs:
        """Return the needs with the tokens of `target`."""
        return self.needs | Needs(parts=frozenset(), text=self.target)

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        forget = batch.forget
        retain = batch.retain
        divergence = one_hot_jsd(forget.logprob_of(forget.text_labels))  # [N]
        drift = retain.jsd_from(batch.reference.retain)
        return {
            "forget": self.forget_weight * forget.mean_tokens(divergence),
            "retain": self.retain_weight * retain.mean_tokens(drift),
        }


def one_hot_jsd(logprob: Tensor) -> Tensor:
    """Compute JSD(p, onehot(u)) [N] from log p(u) [N], exactly even if p rounds to 0."""
    logprob = logprob.clamp(min=-700.0)  # a masked token has −∞
    p = logprob.exp()
    return math.log(2) + (p * logprob - (1 + p) * p.log1p()) / 2
