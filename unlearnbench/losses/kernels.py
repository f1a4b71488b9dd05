"""The kernels of the chunked primitives: values per token and gradients, derived by hand.

Each works in place on a block z [n, V] of logits. A vocabulary entry masked at −inf has
probability 0 and contributes nothing.

Symbols: y the label, p = softmax(z), q = softmax(z with z_y = −∞), d = z_y − log Σ_{v≠y} exp z_v
the log-odds of the label, so that p_y = σ(d).
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
    """d, and the entropy of q as by-product; ∂d/∂z = onehot(y) − q."""

    labels: Tensor
    """[N]"""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """d [n], H(q) [n]."""
        odds, entropy, _, total = _odds(z, self.labels[tokens])
        if gradient:
            _to_gradient(z, self.labels[tokens], total, torch.ones_like(odds))
        return odds, entropy


@dataclass(frozen=True, eq=False)
class UnifiedCrossEntropy(LogitKernel):
    """−Σ_v a_v log p_v against a = r · onehot(y) + (1 − r) · q: General CE-U (Yang 2025).

    = r · softplus(−d) + (1 − r) · (softplus(d) + H(q)), with the gradient p − a, which is
    (p_y − r) · (onehot(y) − q): a is detached, so H(q) has none.
    """

    labels: Tensor
    """[N]"""
    score: Tensor
    """[N] r, or with `raw` the value that replaces z_y in the target."""
    raw: bool = False

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The cross entropy [n]; no by-product."""
        odds, entropy, of_others, total = _odds(z, self.labels[tokens])
        r = self.score[tokens]
        r = torch.sigmoid(r - of_others) if self.raw else r
        if gradient:
            _to_gradient(z, self.labels[tokens], total, torch.sigmoid(odds) - r)
        return unified_value(odds, entropy, r), None


def unified_value(odds: Tensor, entropy: Tensor, r: Tensor) -> Tensor:
    """r · softplus(−d) + (1 − r) · (softplus(d) + H(q)), where an r of 0 or 1 drops a term."""
    learn = torch.where(r > 0, r * softplus(-odds), 0.0)
    return learn + torch.where(r < 1, (1 - r) * (softplus(odds) + entropy), 0.0)


def _odds(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d, H(q), log Σ_{v≠y} exp z_v and Σ of z, all [n]; z becomes exp(z_v − its maximum), 0 at y.

    The label is masked before the maximum: the others' sum stays exact however close p_y is to 1.
    """
    at = labels.unsqueeze(1)
    part = z.gather(1, at)
    z.scatter_(1, at, float("-inf"))
    lowest = torch.finfo(z.dtype).min
    top = z.amax(dim=1, keepdim=True).clamp_(min=lowest)
    z.sub_(top)
    distance = z.clamp(min=lowest)
    z.exp_()
    total = z.sum(dim=1)
    # A dot product makes no third block for the products.
    spread = _dot(z, distance)
    entropy = total.log() - spread / total.clamp(min=torch.finfo(z.dtype).tiny)
    of_others = top.squeeze(1) + total.log()
    return part.squeeze(1) - of_others, entropy, of_others, total


def _dot(tensor: Tensor, other: Tensor) -> Tensor:
    """Σ_v one · other, [n], in the blocks' own precision: autocast would round it to bf16."""
    with torch.autocast(tensor.device.type, enabled=False):
        product: Tensor = torch.linalg.vecdot(tensor, other)
        return product


def _to_gradient(z: Tensor, labels: Tensor, total: Tensor, slope: Tensor) -> None:
    """z = exp(…) of `_odds` becomes slope · (onehot(y) − q)."""
    z.mul_((-slope / total.clamp(min=torch.finfo(z.dtype).tiny)).unsqueeze(1))
    z.scatter_(1, labels.unsqueeze(1), slope.unsqueeze(1))


@dataclass(frozen=True, eq=False)
class Divergence(LogitKernel):
    """KL(t ‖ p) from fixed targets t, ∂/∂z = p − t; reversed, KL(p ‖ t), p ∘ (log p − log t − KL).

    t = softmax of the other model's logits, at its label lowered by `lowered`.
    """

    hidden: Tensor
    """[N, H] of the other model."""
    projection: Projection
    reverse: bool = False
    labels: Tensor | None = None
    """[N]; only with `lowered`."""
    lowered: float = 0.0
    is_own: bool = False
    """Whether the other model's logits are the policy's own, bit for bit."""

    def target_logits(self, tokens: slice, compute: torch.dtype) -> Tensor | None:
        """The other model's logits [c, V], which may be overwritten; None for the policy's own."""
        if self.is_own:
            return None
        logits = self.projection(self.hidden[tokens], compute)
        if self.projection.weight is None:
            logits = logits.clone()
        return self._lowered_(logits, tokens)

    def _lowered_(self, logits: Tensor, tokens: slice) -> Tensor:
        """Lower the logits of the labels, in place."""
        if self.labels is not None:
            at = self.labels[tokens].unsqueeze(1)
            logits.scatter_add_(1, at, logits.new_full(at.shape, -self.lowered))
        return logits

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The divergence [n]; no by-product."""
        if other is None and not self.lowered:
            return _nothing(z), None
        log_t = self._lowered_(z.clone(), tokens) if other is None else other
        for logits in (z, log_t):
            logits.sub_(logits.logsumexp(dim=1, keepdim=True))
        base = z if self.reverse else log_t
        weights = base.exp()
        gap = (z - log_t) if self.reverse else (log_t - z)
        gap.masked_fill_(base.isneginf(), 0.0)
        value = _dot(weights, gap)
        if gradient and self.reverse:
            torch.mul(weights, gap.sub_(value.unsqueeze(1)), out=z)
        elif gradient:
            z.exp_().sub_(weights)
        return value, None


def _nothing(z: Tensor) -> Tensor:
    """Return the divergence [n] of distributions from themselves; z becomes its gradient, 0.

    Logits that are not finite give NaN, so that they are still noticed.
    """
    value = z.logsumexp(dim=1) * 0.0
    z.zero_()
    return value


@dataclass(frozen=True, eq=False)
class JensenShannon(Divergence):
    """½ KL(p ‖ m) + ½ KL(t ‖ m), m = ½ (p + t); ∂/∂z = ½ p ∘ (log p − log m − KL(p ‖ m))."""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The divergence [n]; no by-product."""
        if other is None:
            return _nothing(z), None
        log_t = other
        for logits in (z, log_t):
            logits.sub_(logits.logsumexp(dim=1, keepdim=True))
        log_m = torch.logaddexp(z, log_t).sub_(math.log(2))
        p, t = z.exp(), log_t.exp()
        gap = z.sub_(log_m).masked_fill_(p == 0, 0.0)
        from_p = _dot(p, gap)
        value = (from_p + _dot(t, log_t.sub_(log_m).masked_fill_(t == 0, 0.0))) / 2
        if gradient:
            gap.sub_(from_p.unsqueeze(1)).mul_(p).div_(2)
        return value, None


@dataclass(frozen=True, eq=False)
class FromUniform(LogitKernel):
    """KL(U ‖ p) = −mean_v log p_v − log V over the V entries that are not masked; ∂/∂z = p − U."""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The divergence [n]; no by-product."""
        z.sub_(z.logsumexp(dim=1, keepdim=True))
        masked = z.isneginf()
        count = (~masked).sum(dim=1).to(z.dtype)
        value = -z.masked_fill(masked, 0.0).sum(dim=1) / count - count.log()
        if gradient:
            z.exp_().sub_((1 / count).unsqueeze(1)).masked_fill_(masked, 0.0)
        return value, None


@dataclass(frozen=True, eq=False)
class Lead(LogitKernel):
    """p_y − p_m, m the best other token; ∂/∂z = p_y onehot(y) − p_m onehot(m) − (p_y − p_m) p."""

    labels: Tensor
    """[N]"""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The lead [n]; no by-product."""
        at = self.labels[tokens].unsqueeze(1)
        p = z.sub_(z.logsumexp(dim=1, keepdim=True)).exp_()
        mine = p.gather(1, at)
        best = p.scatter(1, at, -1.0).max(dim=1, keepdim=True)
        lead = mine - best.values
        if gradient:
            p.mul_(-lead).scatter_add_(1, at, mine).scatter_add_(1, best.indices, -best.values)
        return lead.squeeze(1), None


@dataclass(frozen=True, eq=False)
class Entropy(LogitKernel):
    """H(p) = −Σ_v p_v log p_v; ∂H/∂z = −p ∘ (log p + H)."""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The entropy [n]; no by-product."""
        z.sub_(z.logsumexp(dim=1, keepdim=True))
        p = z.exp()
        z.masked_fill_(z.isneginf(), 0.0)
        value = -_dot(p, z)
        if gradient:
            z.add_(value.unsqueeze(1)).mul_(p).neg_()
        return value, None


@dataclass(frozen=True, eq=False)
class Margin(LogitKernel):
    """max_v z_v − mean_v z_v over the entries that are not masked; ∂/∂z = onehot(max) − 1/V."""

    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The margin [n]; no by-product."""
        masked = z.isneginf()
        share = 1 / (~masked).sum(dim=1, keepdim=True).to(z.dtype)
        top = z.max(dim=1, keepdim=True)
        z.masked_fill_(masked, 0.0)
        value = top.values - z.sum(dim=1, keepdim=True) * share
        if gradient:
            z.copy_(-share.expand_as(z)).masked_fill_(masked, 0.0)
            z.scatter_add_(1, top.indices, torch.ones_like(top.values))
        return value.squeeze(1), None
