"""Gradient ascent weighted by each token's probability."""

from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class WGA(Method):
    """WGA: Wang et al. 2025 (G-effect), arXiv:2502.19301.

    L = mean_t sg(p_t^β) · log p_t

    t   answer token of a forget row;  p_t  probability of the true token;  sg  detached
    β   the paper's α. 0 is gradient ascent, whose steps grow as 1 / p_t; 1 takes that factor away

    The paper sums the tokens of a row. Its code, open-unlearning and this file average over all
    tokens. The value −p^β |log p| has a minimum at p = e^(−1/β). Below this p, the value rises
    while p still falls.

    Literature: the authors' training code uses β 5, without a retain term or with a KL of weight 1.
    Their text for open-unlearning uses β 1 with `{method: wga, retain: {term: nll}}`.
    [source: tmlr-group/G-effect@ef368ee dataloader.py; locuslab/open-unlearning@d3d7cf9
    community/methods/WGA/README.md, configs/trainer/WGA.yaml]
    """

    family = "weighted ascent"
    needs = Needs(parts=frozenset({"forget"}))
    ranges: ClassVar = {"beta": (0.1, 5.0)}  # ours, to the authors' 5

    beta: float = setting(
        1.0,
        "exponent β of the weight",
        "locuslab/open-unlearning@d3d7cf9 community/methods/WGA/README.md; 5 in "
        "tmlr-group/G-effect@ef368ee dataloader.py",
        ge=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        logprob = batch.forget.token_logprob  # [N]
        weight = (self.beta * logprob).exp().detach()
        return batch.forget.mean_tokens(weight * logprob)
