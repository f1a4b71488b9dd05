"""NPO for single tokens instead of whole answers."""

from torch import Tensor, sigmoid

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class TNPO(Method):
    """TNPO, with α > 0 WTNPO: Wang et al. 2025 (G-effect), arXiv:2502.19301.

    L = mean_t sg(w_t) · log p_t,   w_t = p_t^α · 2 p_t^β / (p_t^β + p_ref,t^β)

    t             answer token of a forget row;  sg  detached
    p_t, p_ref,t  probability of the true token, by the model and by the frozen start model

    With α = 0, the gradient is that of (2/β) log(1 + (p_t / p_ref,t)^β), which is NPO of a single
    token. The paper sums the tokens of a row, whereas its code and this file average over all
    tokens. The code adds 1e-5 to the denominator, which makes the weight of rare tokens smaller.
    Here, the weight is exact.

    Literature: the training code uses β 4 for both methods, and α 1.5 for WTNPO: `{alpha: 1.5}`.
    (The β 0.1 in its dataloader_ge.py only serves a measurement, and is overwritten there.) The
    paper recommends `retain: {term: kl}`. [source: tmlr-group/G-effect@ef368ee dataloader.py; Wang
    et al. 2025, arXiv:2502.19301]
    """

    family = "preference"
    needs = Needs(parts=frozenset({"forget"}), logprobs=frozenset({"forget"}))

    beta: float = setting(
        4.0, "inverse temperature β", "tmlr-group/G-effect@ef368ee dataloader.py", gt=0
    )
    alpha: float = setting(
        0.0,
        "exponent α of WTNPO's weight; 0 is TNPO",
        "ours: the simpler of the two; 1.5 in tmlr-group/G-effect@ef368ee dataloader.py",
        ge=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        logprob = batch.forget.token_logprob  # [N]
        ratio = self.beta * (logprob - batch.reference.forget.token_logprob)
        weight = 2 * sigmoid(ratio) * (self.alpha * logprob).exp()
        return batch.forget.mean_tokens(weight.detach() * logprob)
