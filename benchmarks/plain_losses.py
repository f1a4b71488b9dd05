"""The usual way of computing a loss: library functions over the full [tokens, vocabulary] matrix.

Each primitive is written as in the papers' listings and repositories, with gradients by autograd.
`PlainPredictions` replaces `Predictions`, so every method can be measured both ways, including
those of other packages.
"""

import math
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from unlearnbench.losses.predictions import Predictions, Reference


class PlainPredictions(Predictions):
    """The same values, computed from one stored logits matrix."""

    @cached_property
    def full(self) -> Tensor:
        """[N, V]"""
        return self.projection(self.hidden)

    @property
    def log_odds(self) -> Tensor:
        """[N] log p_y − log(1 − p_y)."""
        return self.token_logprob - torch.log1p(-self.token_logprob.exp())

    @cached_property
    def token_logprob(self) -> Tensor:
        """[N] log p_y."""
        return -cross_entropy(self.full, self.labels, reduction="none")

    @property
    def unlikelihood(self) -> Tensor:
        """[N] −log(1 − p_y)."""
        return -torch.log1p(-self.token_logprob.exp())

    def cross_entropy(self) -> Tensor:
        """[N] −log p_y."""
        return -self.token_logprob

    def unified_cross_entropy(
        self, score: float | Tensor, *, raw: bool = False, by_token: bool = False
    ) -> Tensor:
        """[N] with the whole target distribution; CE-U as its paper's listing has it."""
        z, at = self.full, self.labels.unsqueeze(1)
        with torch.no_grad():
            scores = self.spread(score, by_token=by_token).to(z).unsqueeze(1)
            target = z.detach().clone()
            target = target.scatter(1, at, scores if raw else float("-inf")).softmax(dim=1)
            if not raw and bool((scores != 0).any()):
                target = ((1 - scores) * target).scatter_add(1, at, scores)
        return cross_entropy(z, target, reduction="none")

    def kl_from(
        self, reference: Reference, *, reverse: bool = False, lowered: float = 0.0
    ) -> Tensor:
        """[N] KL(p_ref ‖ p), or reversed."""
        with torch.no_grad():
            logits = reference.logits
            if lowered:
                at = self.labels.unsqueeze(1)
                logits = logits.scatter_add(1, at, logits.new_full(at.shape, -lowered))
            target = logits.log_softmax(dim=1)
        own = self.full.log_softmax(dim=1)
        inputs = (target, own) if reverse else (own, target)
        return kl_div(*inputs, reduction="none", log_target=True).sum(dim=1)

    @cached_property
    def entropy(self) -> Tensor:
        """[N] −Σ_v p_v log p_v."""
        log_p = self.full.log_softmax(dim=1)
        return -(log_p.exp() * log_p).sum(dim=1)

    @cached_property
    def margin(self) -> Tensor:
        """[N] max_v z_v − mean_v z_v."""
        return self.full.max(dim=1).values - self.full.mean(dim=1)

    def jsd_from(self, reference: Reference) -> Tensor:
        """[N] JSD(p, p_ref)."""
        own, target = self.full.log_softmax(dim=1), reference.logits.log_softmax(dim=1)
        middle = torch.log((own.exp() + target.exp()) / 2)
        sides = (kl_div(middle, side, reduction="none", log_target=True) for side in (own, target))
        return torch.stack([side.sum(dim=1) for side in sides]).mean(dim=0)

    @property
    def kl_from_uniform(self) -> Tensor:
        """[N] KL(U ‖ p)."""
        log_p = self.full.log_softmax(dim=1)
        return -log_p.mean(dim=1) - math.log(log_p.shape[1])

    @property
    def lead(self) -> Tensor:
        """[N] p_y − max_{v≠y} p_v."""
        p, at = self.full.softmax(dim=1), self.labels.unsqueeze(1)
        return p.gather(1, at).squeeze(1) - p.scatter(1, at, 0.0).max(dim=1).values

    def logprob_of(self, tokens: Tensor) -> Tensor:
        """[N] log-probability of other tokens than the labels."""
        return -cross_entropy(self.full, tokens, reduction="none")
