"""FLAT: move from answers to refusals by an f-divergence."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms

Divergence = Literal[
    "jeffreys",
    "jensen-shannon",
    "kl",
    "neyman",
    "pearson",
    "reverse-kl",
    "squared-hellinger",
    "total-variation",
]


class FLAT(Method):
    """FLAT: Wang et al. 2024, arXiv:2410.11143.

    L = mean_b −g(P_b,e) + f*(g(P_b,f))

    b       pair of rows with the same forget question: e  a refusal, f  the true answer
    P_b,e, P_b,f  mean probability of a token of the two answers, between 0 and 1
    g, f*   output activation and convex conjugate of the divergence D_f, of which −L is the
            variational bound (Nowozin et al. 2016, arXiv:1606.00709):

    total-variation    ½ tanh v              t
    jensen-shannon     log(2 / (1 + e^−v))   −log(2 − e^t)
    kl                 v                     e^(t − 1)
    pearson            v                     t²/4 + t
    jeffreys           v                     W + 1/W + t − 2,  W = Lambert's W of e^(1 − t)
    reverse-kl         −e^−v                 −1 − log(−t)
    squared-hellinger  1 − e^−v              t / (1 − t)
    neyman             1 − e^−v              2 − 2 √(1 − t)

    The paper reports the first four divergences, and its code has all eight. In that code, however,
    g of the last three falls with v, so refusals are unlearned, and Neyman's f* is applied to v
    itself. Here, g rises with v. The code takes Jeffreys' f* to third order. It applies g to the
    mean of P over the batch, where prompt and padding count as 0. Here, P is the mean over a row's
    answer tokens, and the mean over rows is taken last.

    Literature: the authors use no retain term and no reference model. The gradient vanishes where P
    is near 0 or 1. [source: Wang et al. 2024, arXiv:2410.11143]
    """

    family = "refusal"
    needs = Needs(parts=frozenset({"forget", "refusal"}))

    divergence: Divergence = setting(
        "total-variation",
        "the divergence D_f",
        "ours: bounded, and one of the four that the paper reports",
    )

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `refusal` and `forget`."""
        forget = batch.forget
        refusal = batch.refusal
        maps = _DIVERGENCES[self.divergence]
        learned = refusal.mean_rows(refusal.token_logprob.exp())  # [B]
        unlearned = forget.mean_rows(forget.token_logprob.exp())
        return {
            "refusal": refusal.mean_sequences(-maps.activation(learned)),
            "forget": forget.mean_sequences(maps.conjugate(unlearned)),
        }


def _jeffreys(t: Tensor) -> Tensor:
    """Return f* of f(u) = (u − 1) log u.

    It is t u − f(u) at its maximum over u, at which log u + 1 − 1/u = t.
    """
    # The solution to first order. Newton's steps from there double the digits.
    log_u = t.detach() / 2
    for _ in range(5):
        inverse = (-log_u).exp()
        log_u = log_u - (log_u + 1 - inverse - t.detach()) / (1 + inverse)
    # u is detached. At a maximum over u, only the explicit t contributes to the derivative.
    u = log_u.exp()
    return t * u - (u - 1) * log_u


@dataclass(frozen=True)
class _Maps:
    """The two functions of a divergence."""

    activation: Callable[[Tensor], Tensor]
    """g(v)"""
    conjugate: Callable[[Tensor], Tensor]
    """f*(g(v)), simplified"""


_DIVERGENCES: dict[Divergence, _Maps] = {
    "jeffreys": _Maps(lambda v: v, _jeffreys),
    "jensen-shannon": _Maps(
        lambda v: math.log(2) - softplus(-v),
        lambda v: softplus(v) - math.log(2),
    ),
    "kl": _Maps(lambda v: v, lambda v: (v - 1).exp()),
    "neyman": _Maps(lambda v: 1 - (-v).exp(), lambda v: 2 - 2 * (-v / 2).exp()),
    "pearson": _Maps(lambda v: v, lambda v: v.square() / 4 + v),
    "reverse-kl": _Maps(lambda v: -(-v).exp(), lambda v: v - 1),
    "squared-hellinger": _Maps(lambda v: 1 - (-v).exp(), lambda v: v.exp() - 1),
    "total-variation": _Maps(lambda v: v.tanh() / 2, lambda v: v.tanh() / 2),
}
