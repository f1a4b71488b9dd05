"""The output layer and what is computed from its logits, in one pass over chunks of tokens.

At 4096 tokens and 128 256 vocabulary entries one [tokens, vocabulary] matrix in fp32 is 2.1 GB,
and a loss written with library functions holds several. Here at most one chunk of logits exists
at a time: a `Kernel` turns it, in place, into the gradient of its value by a formula derived by
hand, and the chunk goes into the gradients of hidden states and weights before the next is made.

Symbols: N tokens, H hidden size, V vocabulary entries, c tokens of a chunk, z [c, V] logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unlearnbench.projection import Projection

CHUNK_BYTES = 256 * 2**20
"""Of logits at a time. Fewer, larger chunks read and write the weight's gradient less often."""
KEPT_BYTES = 64 * 2**20
"""Of logits at most that are kept for the way back, where making them again would take longer."""
_BLOCK_BYTES = {"cpu": 4 * 2**20}
"""Of logits that a kernel works on at a time: on a CPU what stays in its cache."""


class Kernel(ABC):
    """One value per token, and its gradient with respect to the token's logits."""

    def against(self, tokens: slice, compute: torch.dtype) -> Tensor | None:
        """Other logits [c, V] that the chunk `tokens` is compared with; None for none.

        compute  what the chunk's own were made in: autograd makes both again outside autocast
        """
        return None

    @abstractmethod
    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The values [n] of logits z [n, V], which may be overwritten; and a by-product [n].

        With `gradient`, z is left as ∂value/∂z. No gradient goes through the by-product.
        """


def fused(
    hidden: Tensor, projection: Projection, kernel: Kernel, *, eager: bool
) -> tuple[Tensor, Tensor]:
    """The kernel's values [N] and by-products [N] for hidden states [N, H].

    eager  compute the gradients with the values, in three matrix products, for a value that is
           only averaged; if its tokens turn out to weigh differently, the chunks are made again.
           Without it they are made again in any case, when the weights are known: four products;
           unless they are so few that they are kept, as the gradients that they have become.
    """
    weights = (projection.weight, projection.bias)
    # What is not summed over tokens can be weighted afterwards, token by token.
    summed = any(t is not None and t.requires_grad for t in weights)
    now = torch.is_grad_enabled() and (eager or not summed)
    # Chunks and buffers are laid out by hand: there is nothing to compile.
    apply: Any = torch.compiler.disable(_Fused.apply)
    compute = _compute_type(hidden, projection)
    found: tuple[Tensor, Tensor] = apply(hidden, *weights, projection, kernel, now, compute)
    return found


def _compute_type(hidden: Tensor, projection: Projection) -> torch.dtype:
    """What the matrix products are done in."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype if projection.weight is None else projection.weight.dtype


@dataclass(eq=False)
class _Gradients:
    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def scaled(self, upstream: Tensor) -> _Gradients | None:
        """For `upstream` [N] in place of ones; None where that cannot be made of the sums."""
        if self.weight is None and self.bias is None:
            if self.hidden is not None:
                self.hidden.mul_(upstream.unsqueeze(1))
            return self
        if not _equal(upstream):
            return None
        for gradient in (self.hidden, self.weight, self.bias):
            if gradient is not None and len(upstream):
                gradient.mul_(upstream[0])
        return self


def _equal(weights: Tensor) -> bool:
    """True if the `weights` [N] are known to be one number.

    A sum gives all its terms the same weight: one number in memory that N places share. Numbers of
    their own are compared on a CPU only: a GPU makes the chunks again sooner than the host has
    waited for all that is queued there.
    """
    if len(weights) < 2 or weights.stride() == (0,):
        return True
    return weights.device.type == "cpu" and bool((weights == weights[0]).all())


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        projection: Projection,
        kernel: Kernel,
        eager: bool,
        compute: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        wanted = tuple(ctx.needs_input_grad[:3])
        ctx.save_for_backward(hidden, weight, bias)
        ctx.how = (projection.scale, projection.cap, kernel, compute)
        run = _Pass(hidden, weight, bias, *ctx.how)
        ctx.kept = None
        if not eager and any(wanted) and run.bytes <= min(KEPT_BYTES, CHUNK_BYTES):
            values, aside, ctx.kept = run.kept()
            ctx.gradients = None
        else:
            values, aside, ctx.gradients = run(None, wanted if eager else (False,) * 3)
        ctx.mark_non_differentiable(aside)
        return values, aside

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        # Taken out: what is scaled in place serves once; a second pass back makes its own.
        gradients, ctx.gradients = ctx.gradients, None
        kept, ctx.kept = ctx.kept, None
        gradients = gradients.scaled(upstream[0]) if gradients is not None else None
        if gradients is None:
            run, wanted = _Pass(*ctx.saved_tensors, *ctx.how), tuple(ctx.needs_input_grad[:3])
            if kept is not None:
                gradients = run.of(kept.mul_(upstream[0].unsqueeze(1)), wanted)
            else:
                gradients = run(upstream[0], wanted)[2]
        kinds = (t if t is None else t.dtype for t in ctx.saved_tensors)
        made = gradients if gradients is not None else _Gradients(None, None, None)
        made = (made.hidden, made.weight, made.bias)
        typed = (g if g is None else g.to(kind) for g, kind in zip(made, kinds, strict=True))
        return (*typed, None, None, None, None)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One walk over all tokens, a chunk of logits at a time."""

    hidden: Tensor
    weight: Tensor | None
    bias: Tensor | None
    scale: float
    cap: float | None
    kernel: Kernel
    compute: torch.dtype

    @property
    def exact(self) -> torch.dtype:
        """What logits, values and sums are kept in."""
        return torch.promote_types(self.hidden.dtype, torch.float32)

    @property
    def vocabulary(self) -> int:
        """V"""
        return self.hidden.shape[1] if self.weight is None else len(self.weight)

    @property
    def bytes(self) -> int:
        """Of the logits of all tokens."""
        return len(self.hidden) * self.vocabulary * self.exact.itemsize

    def __call__(
        self, upstream: Tensor | None, wanted: tuple[bool, ...]
    ) -> tuple[Tensor, Tensor, _Gradients | None]:
        """Values, by-products and the gradients `wanted`, each token weighted by `upstream`."""
        count, weight = len(self.hidden), self._typed_weight()
        values, aside = self.hidden.new_zeros((2, count), dtype=self.exact)
        gradients = self._zeros(wanted) if any(wanted) else None
        step = max(1, CHUNK_BYTES // (self.vocabulary * self.exact.itemsize))
        buffer = self.hidden.new_empty((min(step, count), self.vocabulary), dtype=self.exact)
        for begin in range(0, count, step):
            tokens = slice(begin, min(begin + step, count))
            z = buffer[: tokens.stop - begin]
            self._logits(tokens, weight, out=z)
            self._kernel(z, tokens, values, aside, upstream, gradient=gradients is not None)
            if gradients is not None:
                self._accumulate(z, tokens, weight, gradients)
        return values, aside, gradients

    def kept(self) -> tuple[Tensor, Tensor, Tensor]:
        """Values, by-products and ∂value/∂z [N, V] of all tokens at once."""
        every = slice(0, len(self.hidden))
        values, aside = self.hidden.new_zeros((2, every.stop), dtype=self.exact)
        z = self.hidden.new_empty((every.stop, self.vocabulary), dtype=self.exact)
        self._logits(every, self._typed_weight(), out=z)
        self._kernel(z, every, values, aside, None, gradient=True)
        return values, aside, z

    def of(self, dz: Tensor, wanted: tuple[bool, ...]) -> _Gradients:
        """The gradients `wanted` for those of all logits."""
        gradients = self._zeros(wanted)
        self._accumulate(dz, slice(0, len(dz)), self._typed_weight(), gradients)
        return gradients

    def _typed_weight(self) -> Tensor | None:
        return self.weight if self.weight is None else self.weight.to(self.compute)

    def _zeros(self, wanted: tuple[bool, ...]) -> _Gradients:
        made = [
            torch.zeros_like(t, dtype=self.exact) if t is not None and needed else None
            for t, needed in zip((self.hidden, self.weight, self.bias), wanted, strict=True)
        ]
        return _Gradients(*made)

    def _logits(self, tokens: slice, weight: Tensor | None, *, out: Tensor) -> None:
        hidden = self.hidden[tokens]
        if weight is None:
            out.copy_(hidden)
        elif out.dtype == self.compute:
            torch.mm(hidden.to(self.compute), weight.T, out=out)
        else:
            out.copy_(hidden.to(self.compute) @ weight.T)
        if self.bias is not None:
            out.add_(self.bias)

    def _kernel(
        self,
        z: Tensor,
        tokens: slice,
        values: Tensor,
        aside: Tensor,
        upstream: Tensor | None,
        *,
        gradient: bool,
    ) -> None:
        other = self.kernel.against(tokens, self.compute)
        most = _BLOCK_BYTES.get(z.device.type, 64 * 2**20)
        step = max(1, most // (z.shape[1] * z.element_size()))
        for begin in range(0, len(z), step):
            block = z[begin : begin + step]
            at = slice(tokens.start + begin, tokens.start + begin + len(block))
            slope = self._shape(block)
            beside = None if other is None else other[begin : begin + step]
            value, by_product = self.kernel(block, at, beside, gradient=gradient)
            values[at] = value
            if by_product is not None:
                aside[at] = by_product
            if gradient and slope is not None:
                block.mul_(slope)
            if gradient and upstream is not None:
                block.mul_(upstream[at].unsqueeze(1))

    def _shape(self, z: Tensor) -> Tensor | float | None:
        """Scale and cap z in place; returns the derivative of that, None where it is 1."""
        if self.scale != 1:
            z.mul_(self.scale)
        if not self.cap:
            return self.scale if self.scale != 1 else None
        z.div_(self.cap).tanh_()
        slope = (1 - z.square()).mul_(self.scale)
        z.mul_(self.cap)
        return slope

    def _accumulate(
        self, dz: Tensor, tokens: slice, weight: Tensor | None, into: _Gradients
    ) -> None:
        if into.bias is not None:
            into.bias.add_(dz.sum(dim=0))
        if weight is None:
            if into.hidden is not None:
                into.hidden[tokens] = dz
            return
        typed = dz.to(self.compute)
        if into.hidden is not None:
            into.hidden[tokens] = typed @ weight
        if into.weight is None:
            return
        hidden = self.hidden[tokens].to(self.compute)
        if into.weight.dtype == self.compute:
            into.weight.addmm_(typed.T, hidden)
            return
        # Sums over chunks stay in fp32; the product of a part of the vocabulary is all beside it.
        step = max(1, CHUNK_BYTES // (hidden.shape[1] * 8))
        for begin in range(0, len(weight), step):
            part = slice(begin, begin + step)
            into.weight[part].add_(typed[:, part].T @ hidden)
