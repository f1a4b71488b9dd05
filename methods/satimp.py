"""SatImp: gradient ascent on tokens neither forgotten nor certain."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class SatImp(Method):
    """SatImp: Yang et al. 2025, arXiv:2505.11953.

    L = mean_t sg(p_t^β₁ · (1 − p_t)^β₂) · log p_t

    t   answer token of a forget row;  p_t  probability of the true token;  sg  detached
    β₁  saturation: less weight where little is left to forget;  β₂ = 0 is WGA
    β₂  importance: less weight on what goes without saying

    A model that knows the forget set by heart starts slowly, because a p_t near 1 has hardly any
    weight. 1 − p_t is computed from log-odds, so it stays exact there.

    Literature: the authors use `retain: {term: nll, weight: 0.1}`, so the forget loss is 10 times
    as heavy as the retain loss. Their repository (coefficient 0.1 on the retain loss) and their
    text for open-unlearning (γ 1, α 0.1) agree on this. The class of open-unlearning has these
    values, but its YAML has them swapped. β₂ is 1 here, as in their text for open-unlearning. The
    README of their repository recommends 0.1. `beta2: [0.1, 1.0]` tries both.
    [source: locuslab/open-unlearning@d3d7cf9 community/methods/SatImp/README.md,
    configs/trainer/SatImp.yaml; Puning97/SatImp-for-LLM-Unlearning README.md]
    """

    family = "weighted ascent"
    needs = Needs(parts=frozenset({"forget"}))

    beta1: float = setting(
        5.0,
        "exponent β₁ of p, saturation",
        "locuslab/open-unlearning@d3d7cf9 community/methods/SatImp/README.md",
        ge=0,
    )
    beta2: float = setting(
        1.0,
        "exponent β₂ of 1 − p, importance",
        "locuslab/open-unlearning@d3d7cf9 community/methods/SatImp/README.md; the authors' own "
        "repository recommends 0.1",
        ge=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        logprob = batch.forget.token_logprob  # [N]
        logprob_of_others = logsigmoid(-batch.forget.log_odds)  # log(1 − p)
        weight = (self.beta1 * logprob + self.beta2 * logprob_of_others).exp().detach()
        return batch.forget.mean_tokens(weight * logprob)
