"""The kernels of the chunked primitives: values per token and gradients, derived by hand.

Each kernel works in place on a block of logits, see `chunked.LogitKernel.__call__`. A vocabulary
entry masked at −inf has probability 0 and contributes nothing.

Symbols: N tokens, n tokens of a block, H hidden size, V vocabulary entries, z [n, V] logits,
y [n] labels, p = softmax(z), q = softmax(z with z_y = −∞), d = z_y − log Σ_{v≠y} exp z_v log-odds
of the label, so that p_y = σ(d), ∂/∂z gradient of a token's value with respect to its own logits,
∘ product by entry.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.losses.chunked import LogitKernel
from unlearnbench.losses.lm_head import Projection


@dataclass(frozen=True, eq=False)
class LogOdds(LogitKernel):
    """The log-odds d of the label, with the entropy H(q) as by-product.

    Gradient: ∂d/∂z = onehot(y) − q.
    """

    labels: Tensor
    """[N]"""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute d [n] and H(q) [n]."""
        odds, entropy, _, total = _odds(z, self.labels[tokens])
        if gradient:
            _to_gradient(z, self.labels[tokens], total, torch.ones_like(odds))
        return odds, entropy


@dataclass(frozen=True, eq=False)
class UnifiedCrossEntropy(LogitKernel):
    """Cross entropy against a detached target a, which is General CE-U (Yang 2025).

    a = r · onehot(y) + (1 − r) · q
    −Σ_v a_v log p_v = r · softplus(−d) + (1 − r) · (softplus(d) + H(q))

    Gradient: ∂/∂z = p − a = (p_y − r) · (onehot(y) − q). H(q) contributes no gradient, because the
    target is detached.
    """

    labels: Tensor
    """[N]"""
    score: Tensor
    """[N] r, or the value that replaces z_y in the target if `raw` is true."""
    raw: bool = False

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the cross entropies [n]. There is no by-product."""
        odds, entropy, log_others, total = _odds(z, self.labels[tokens])
        r = self.score[tokens]
        if self.raw:
            r = torch.sigmoid(r - log_others)
        if gradient:
            _to_gradient(z, self.labels[tokens], total, torch.sigmoid(odds) - r)
        return unified_value(odds, entropy, r), None


def unified_value(odds: Tensor, entropy: Tensor, r: Tensor) -> Tensor:
    """Compute r · softplus(−d) + (1 − r) · (softplus(d) + H(q)), as in `UnifiedCrossEntropy`.

    If r is 0 or 1, the other term is dropped, because 0 times an infinite term would be NaN.

    Args:
        odds: d [n].
        entropy: H(q) [n].
        r: Weights [n] of the label in the target.
    """
    learn = torch.where(r > 0, r * softplus(-odds), 0.0)
    return learn + torch.where(r < 1, (1 - r) * (softplus(odds) + entropy), 0.0)


def _odds(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute log-odds and entropy, and replace z by the exponentials of the other tokens' logits.

    The label is masked before the maximum is taken, so that the sum over the other tokens stays
    exact however close p_y is to 1.

    Args:
        z: Logits [n, V]. They become exp(z_v − max_{v≠y} z_v), and 0 at the label.
        labels: y [n].

    Returns:
        Four tensors [n]: d, H(q), log Σ_{v≠y} exp z_v, and the sum of what z has become.
    """
    at_label = labels.unsqueeze(1)
    label_logit = z.gather(1, at_label)
    z.scatter_(1, at_label, float("-inf"))
    lowest = torch.finfo(z.dtype).min
    # If all other tokens are masked, the maximum is −inf, and −inf − (−inf) would be NaN.
    top = z.amax(dim=1, keepdim=True).clamp_(min=lowest)
    z.sub_(top)
    distance = z.clamp(min=lowest)
    z.exp_()
    total = z.sum(dim=1)
    # A dot product makes no third block for the products.
    spread = _dot(z, distance)
    entropy = total.log() - spread / total.clamp(min=torch.finfo(z.dtype).tiny)
    log_others = top.squeeze(1) + total.log()
    return label_logit.squeeze(1) - log_others, entropy, log_others, total


def _dot(tensor: Tensor, other: Tensor) -> Tensor:
    """Compute Σ_v tensor · other [n] in the blocks' own precision.

    Autocast is switched off, because it would round the sum to bf16.
    """
    with torch.autocast(tensor.device.type, enabled=False):
        product: Tensor = torch.linalg.vecdot(tensor, other)
        return product


def _to_gradient(z: Tensor, labels: Tensor, total: Tensor, slope: Tensor) -> None:
    """Replace the exponentials z that `_odds` leaves by slope · (onehot(y) − q), in place.

    Args:
        z: Exponentials [n, V].
        labels: y [n].
        total: Sums [n] of the exponentials, from `_odds`.
        slope: ∂value/∂d [n].
    """
    z.mul_((-slope / total.clamp(min=torch.finfo(z.dtype).tiny)).unsqueeze(1))
    z.scatter_(1, labels.unsqueeze(1), slope.unsqueeze(1))


@dataclass(frozen=True, eq=False)
class Divergence(LogitKernel):
    """Divergence from the distribution t of another model, which carries no gradient.

    KL(t ‖ p), with the gradient ∂/∂z = p − t
    KL(p ‖ t) if `reverse` is true, with the gradient ∂/∂z = p ∘ (log p − log t − KL(p ‖ t))

    t is the softmax of the other model's logits, after the label's logit is lowered by `lowered`.
    """

    hidden: Tensor
    """[N, H] final hidden states of the other model."""
    projection: Projection
    """Output layer of the other model."""
    reverse: bool = False
    labels: Tensor | None = None
    """[N]; None if no logit is lowered."""
    lowered: float = 0.0
    is_own: bool = False
    """Whether the other model's logits are the policy's own, bit for bit."""

    def target_logits(self, tokens: slice, compute: torch.dtype) -> Tensor | None:
        """Compute the other model's logits [c, V], or return None if they are the policy's own."""
        if self.is_own:
            return None
        logits = self.projection(self.hidden[tokens], compute)
        if self.projection.weight is None:
            # These are the stored logits themselves, and the kernel overwrites what it gets.
            logits = logits.clone()
        return self._lowered_(logits, tokens)

    def _lowered_(self, logits: Tensor, tokens: slice) -> Tensor:
        """Lower the logits of the labels, in place."""
        if self.labels is not None:
            at_label = self.labels[tokens].unsqueeze(1)
            logits.scatter_add_(1, at_label, logits.new_full(at_label.shape, -self.lowered))
        return logits

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the divergences [n]. There is no by-product."""
        if other is None and not self.lowered:
            return _nothing(z), None
        log_t = self._lowered_(z.clone(), tokens) if other is None else other
        for logits in (z, log_t):
            logits.sub_(logits.logsumexp(dim=1, keepdim=True))
        base = z if self.reverse else log_t
        weights = base.exp()
        gap = (z - log_t) if self.reverse else (log_t - z)
        # 0 · log 0 is 0 in a divergence, and NaN in floating point.
        gap.masked_fill_(base.isneginf(), 0.0)
        value = _dot(weights, gap)
        if gradient and self.reverse:
            torch.mul(weights, gap.sub_(value.unsqueeze(1)), out=z)
        elif gradient:
            z.exp_().sub_(weights)
        return value, None


def _nothing(z: Tensor) -> Tensor:
    """Return the divergence [n] of distributions from themselves, and replace z by its gradient, 0.

    The divergence is 0, or NaN for logits that are not finite, so that they are still noticed.
    """
    value = z.logsumexp(dim=1) * 0.0
    z.zero_()
    return value


@dataclass(frozen=True, eq=False)
class JensenShannon(Divergence):
    """Jensen-Shannon divergence from the distribution t of another model.

    ½ KL(p ‖ m) + ½ KL(t ‖ m), m = ½ (p + t)

    Gradient: ∂/∂z = ½ p ∘ (log p − log m − KL(p ‖ m)).
    """

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the divergences [n]. There is no by-product."""
        if other is None:
            return _nothing(z), None
        log_t = other
        for logits in (z, log_t):
            logits.sub_(logits.logsumexp(dim=1, keepdim=True))
        log_m = torch.logaddexp(z, log_t).sub_(math.log(2))
        p, t = z.exp(), log_t.exp()
        # From here on z and log_t contain log p − log m and log t − log m, with 0 · log 0 = 0.
        z.sub_(log_m).masked_fill_(p == 0, 0.0)
        log_t.sub_(log_m).masked_fill_(t == 0, 0.0)
        kl_p = _dot(p, z)
        kl_t = _dot(t, log_t)
        value = (kl_p + kl_t) / 2
        if gradient:
            z.sub_(kl_p.unsqueeze(1)).mul_(p).div_(2)
        return value, None


@dataclass(frozen=True, eq=False)
class FromUniform(LogitKernel):
    """Divergence from the uniform distribution U over the entries that are not masked.

    KL(U ‖ p) = −mean_v log p_v − log V, with V the number of entries that are not masked

    Gradient: ∂/∂z = p − U.
    """

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the divergences [n]. There is no by-product."""
        z.sub_(z.logsumexp(dim=1, keepdim=True))
        masked = z.isneginf()
        count = (~masked).sum(dim=1).to(z.dtype)
        value = -z.masked_fill(masked, 0.0).sum(dim=1) / count - count.log()
        if gradient:
            z.exp_().sub_((1 / count).unsqueeze(1)).masked_fill_(masked, 0.0)
        return value, None


@dataclass(frozen=True, eq=False)
class Lead(LogitKernel):
    """Lead p_y − p_m of the label over m, the most likely other token.

    The inverted hinge loss (method `ihl`) lowers it, and so raises exactly one other token.

    Gradient: ∂/∂z = p_y · onehot(y) − p_m · onehot(m) − (p_y − p_m) · p.
    """

    labels: Tensor
    """[N]"""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the leads [n]. There is no by-product."""
        at_label = self.labels[tokens].unsqueeze(1)
        p = z.sub_(z.logsumexp(dim=1, keepdim=True)).exp_()
        p_label = p.gather(1, at_label)
        best_other = p.scatter(1, at_label, -1.0).max(dim=1, keepdim=True)
        lead = p_label - best_other.values
        if gradient:
            p.mul_(-lead)
            p.scatter_add_(1, at_label, p_label)
            p.scatter_add_(1, best_other.indices, -best_other.values)
        return lead.squeeze(1), None


@dataclass(frozen=True, eq=False)
class Entropy(LogitKernel):
    """Entropy H(p) = −Σ_v p_v log p_v.

    Gradient: ∂H/∂z = −p ∘ (log p + H).
    """

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the entropies [n]. There is no by-product."""
        z.sub_(z.logsumexp(dim=1, keepdim=True))
        p = z.exp()
        z.masked_fill_(z.isneginf(), 0.0)
        value = -_dot(p, z)
        if gradient:
            z.add_(value.unsqueeze(1)).mul_(p).neg_()
        return value, None


@dataclass(frozen=True, eq=False)
class Margin(LogitKernel):
    """Margin max_v z_v − mean_v z_v of the largest logit over the V entries that are not masked.

    Gradient: ∂/∂z = onehot(argmax_v z_v) − 1/V.
    """

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the margins [n]. There is no by-product."""
        masked = z.isneginf()
        share = 1 / (~masked).sum(dim=1, keepdim=True).to(z.dtype)
        top = z.max(dim=1, keepdim=True)
        z.masked_fill_(masked, 0.0)
        value = top.values - z.sum(dim=1, keepdim=True) * share
        if gradient:
            z.copy_(-share.expand_as(z)).masked_fill_(masked, 0.0)
            z.scatter_add_(1, top.indices, torch.ones_like(top.values))
        return value.squeeze(1), None
