"""The output layer and what is computed from its logits, a chunk of tokens at a time.

At 4096 tokens and 128 256 vocabulary entries one [tokens, vocabulary] matrix in fp32 is 2.1 GB,
and a loss written with library functions holds several. Here at most one chunk of logits exists
at a time: a `LogitKernel` turns it, in place, into the gradient of its value by a formula derived
by hand, and the chunk goes into the gradients of hidden states and weights before the next is made.

Symbols: N tokens, H hidden size, V vocabulary entries, c tokens of a chunk, z [c, V] logits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from unlearnbench.losses.lm_head import Projection

CHUNK_BYTES = 256 * 2**20
"""Logits of one chunk. Few large chunks read and write the weight's gradient less often."""
CACHED_BYTES = 64 * 2**20
"""Up to this size, logits are kept for the backward pass: computing them again takes longer."""
_BLOCK_BYTES = {"cpu": 4 * 2**20}
"""Logits that a kernel works on at a time; on a CPU what stays in its cache."""
_BLOCK_BYTES_ELSEWHERE = 64 * 2**20


class LogitKernel(ABC):
    """One value per token, and its gradient with respect to the token's logits."""

    def target_logits(self, tokens: slice, compute: torch.dtype) -> Tensor | None:
        """Other logits [c, V] that the chunk `tokens` is compared with; None for none.

        compute  dtype of the chunk's own matrix product: the backward pass runs outside autocast
        """
        return None

    @abstractmethod
    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The values [n] of logits z [n, V], which may be overwritten; and a by-product [n].

        With `gradient`, z is left as ∂value/∂z. No gradient goes through the by-product.
        """


def apply_kernel(
    hidden: Tensor, projection: Projection, kernel: LogitKernel, *, eager: bool
) -> tuple[Tensor, Tensor]:
    """The kernel's values [N] and by-products [N] for hidden states [N, H].

    eager  the values are probably only averaged, so gradients may be computed with them:
           three matrix products in place of four
    """
    weight, bias = projection.weight, projection.bias
    layer = (projection.scale, projection.cap, kernel, _compute_dtype(hidden, projection))
    trains_layer = any(t is not None and t.requires_grad for t in (weight, bias))
    way: _Way = "recomputed"
    if torch.is_grad_enabled() and (trains_layer or hidden.requires_grad):
        # float16 cannot hold the gradients of tokens that each weigh 1: sums over tokens overflow,
        # and small ones are lost. The backward pass brings weights that contain the loss scale.
        can_be_eager = layer[3] != torch.float16
        # Gradients of hidden states are not summed over tokens.
        if can_be_eager and (eager or not trains_layer):
            way = "eager"
        elif LogitChunks(hidden, weight, bias, *layer).bytes <= min(CACHED_BYTES, CHUNK_BYTES):
            way = "cached"
    # Chunks and buffers are laid out by hand: there is nothing to compile.
    uncompiled: Any = torch.compiler.disable(_ChunkedLoss.apply)
    tensors: tuple[Tensor, Tensor] = uncompiled(hidden, weight, bias, layer, way)
    return tensors


def _compute_dtype(hidden: Tensor, projection: Projection) -> torch.dtype:
    """The dtype of the matrix products."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype if projection.weight is None else projection.weight.dtype


_Layer = tuple[float, float | None, LogitKernel, torch.dtype]
"""Scale and cap of the logits, what is computed from them, dtype of matrix products."""
_Way = Literal["recomputed", "cached", "eager"]
"""Way of the gradients: for the tokens' weights, from logits made again; from ∂value/∂z [N, V],
kept of so few tokens that it can be; or with the values, as if each token weighed 1, and scaled.
Where tokens weigh differently and gradients are sums over tokens, logits are made again."""


class _ChunkedLoss(torch.autograd.Function):
    """Values [N] and by-products [N], whose gradients come about in one of three ways."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        layer: _Layer,
        way: _Way,
    ) -> tuple[Tensor, Tensor]:
        """Values and by-products."""
        ctx.save_for_backward(hidden, weight, bias)
        ctx.layer, ctx.gradients, ctx.dz = layer, None, None
        chunks = LogitChunks(hidden, weight, bias, *layer)
        if way == "cached":
            values, by_products, ctx.dz = chunks.values_and_dz()
        else:
            needed = ctx.needs_input_grad[:3] if way == "eager" else (False, False, False)
            values, by_products, gradients = chunks.values_and_gradients(needed)
            ctx.gradients = gradients if way == "eager" else None
        ctx.mark_non_differentiable(by_products)
        return values, by_products

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """The gradients of hidden states, weight and bias for `upstream` [N]."""
        chunks = LogitChunks(*ctx.saved_tensors, *ctx.layer)
        needed, weights = ctx.needs_input_grad[:3], upstream[0]
        gradients, dz = ctx.gradients, ctx.dz
        ctx.gradients = ctx.dz = None  # scaled in place, so they serve once
        if dz is not None:
            gradients = chunks.gradients_of(dz.mul_(weights.unsqueeze(1)), needed)
        elif gradients is None or not gradients.scale_(weights):
            gradients = chunks.values_and_gradients(needed, weights)[2]
        return (*gradients.typed_like(ctx.saved_tensors), None, None)


@dataclass(eq=False)
class _Gradients:
    """The gradients of those inputs that need one."""

    hidden: Tensor | None
    """[N, H]"""
    weight: Tensor | None
    """[V, H]"""
    bias: Tensor | None
    """[V]"""

    def scale_(self, upstream: Tensor) -> bool:
        """Weight each token by `upstream` [N]; False where sums over tokens cannot be so."""
        if self.weight is None and self.bias is None:
            if self.hidden is not None:
                self.hidden.mul_(upstream.unsqueeze(1))
            return True
        if not _all_equal(upstream):
            return False
        for gradient in (self.hidden, self.weight, self.bias):
            if gradient is not None and len(upstream):
                gradient.mul_(upstream[0])
        return True

    def typed_like(self, inputs: Sequence[Tensor]) -> Iterator[Tensor | None]:
        """Each in the dtype of its input."""
        for gradient, part in zip((self.hidden, self.weight, self.bias), inputs, strict=True):
            yield None if gradient is None else gradient.to(part.dtype)


def _all_equal(weights: Tensor) -> bool:
    """True if the `weights` [N] are known to be one number.

    The backward pass of a sum gives one number in memory that N places share. Separate numbers are
    compared on a CPU only: on a GPU that waits for all queued work, longer than making the logits
    again takes.
    """
    if len(weights) < 2 or weights.stride() == (0,):
        return True
    return weights.device.type == "cpu" and bool((weights == weights[0]).all())


@dataclass(frozen=True, eq=False)
class LogitChunks:
    """The logits of N tokens, made and consumed a chunk at a time."""

    hidden: Tensor
    """[N, H] final hidden states; [N, V] logits where there is no weight."""
    weight: Tensor | None
    """[V, H]"""
    bias: Tensor | None
    """[V]"""
    scale: float
    cap: float | None
    kernel: LogitKernel
    compute: torch.dtype
    """Type of the matrix products."""

    @property
    def exact(self) -> torch.dtype:
        """The dtype of logits, values and sums."""
        return torch.promote_types(self.hidden.dtype, torch.float32)

    @property
    def vocabulary(self) -> int:
        """V"""
        return self.hidden.shape[1] if self.weight is None else len(self.weight)

    @property
    def bytes(self) -> int:
        """Size of the logits of all tokens."""
        return len(self.hidden) * self.vocabulary * self.exact.itemsize

    def values_and_gradients(
        self, needed: tuple[bool, ...], upstream: Tensor | None = None
    ) -> tuple[Tensor, Tensor, _Gradients]:
        """Values [N], by-products [N] and the `needed` gradients of hidden, weight and bias.

        upstream  [N] weights of the tokens in these; None for ones
        """
        count, weight, gradient = len(self.hidden), self._typed_weight(), any(needed)
        values, by_products = self.hidden.new_zeros((2, count), dtype=self.exact)
        gradients = self._zeros(needed)
        step = max(1, CHUNK_BYTES // (self.vocabulary * self.exact.itemsize))
        buffer = self.hidden.new_empty((min(step, count), self.vocabulary), dtype=self.exact)
        for begin in range(0, count, step):
            tokens = slice(begin, min(begin + step, count))
            z = buffer[: tokens.stop - begin]  # [c, V]
            self._logits(tokens, weight, out=z)
            self._run_kernel(z, tokens, values, by_products, upstream, gradient=gradient)
            if gradient:
                self._accumulate(z, tokens, weight, gradients)
        return values, by_products, gradients

    def values_and_dz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Values [N], by-products [N] and ∂value/∂z [N, V], of all tokens at once."""
        count = len(self.hidden)
        values, by_products = self.hidden.new_zeros((2, count), dtype=self.exact)
        z = self.hidden.new_empty((count, self.vocabulary), dtype=self.exact)
        self._logits(slice(0, count), self._typed_weight(), out=z)
        self._run_kernel(z, slice(0, count), values, by_products, None, gradient=True)
        return values, by_products, z

    def gradients_of(self, dz: Tensor, needed: tuple[bool, ...]) -> _Gradients:
        """The `needed` gradients for those of all logits, dz [N, V]."""
        gradients = self._zeros(needed)
        self._accumulate(dz, slice(0, len(dz)), self._typed_weight(), gradients)
        return gradients

    def _typed_weight(self) -> Tensor | None:
        return self.weight if self.weight is None else self.weight.to(self.compute)

    def _zeros(self, needed: tuple[bool, ...]) -> _Gradients:
        zeros = [
            torch.zeros_like(t, dtype=self.exact) if t is not None and need else None
            for t, need in zip((self.hidden, self.weight, self.bias), needed, strict=True)
        ]
        return _Gradients(*zeros)

    def _logits(self, tokens: slice, weight: Tensor | None, *, out: Tensor) -> None:
        """h Wᵀ + b of a chunk, before scale and cap, into `out` [c, V]."""
        hidden = self.hidden[tokens]  # [c, H]
        if weight is None:
            out.copy_(hidden)
        elif out.dtype == self.compute:
            torch.mm(hidden.to(self.compute), weight.T, out=out)
        else:
            out.copy_(hidden.to(self.compute) @ weight.T)
        if self.bias is not None:
            out.add_(self.bias)

    def _run_kernel(
        self,
        z: Tensor,
        tokens: slice,
        values: Tensor,
        by_products: Tensor,
        upstream: Tensor | None,
        *,
        gradient: bool,
    ) -> None:
        """Fill in what the kernel makes of a chunk's logits z [c, V], block by block.

        With `gradient`, z becomes the gradient of the values, weighted by `upstream`.
        """
        target = self.kernel.target_logits(tokens, self.compute)
        most = _BLOCK_BYTES.get(z.device.type, _BLOCK_BYTES_ELSEWHERE)
        step = max(1, most // (z.shape[1] * z.element_size()))
        for begin in range(0, len(z), step):
            block = z[begin : begin + step]
            at = slice(tokens.start + begin, tokens.start + begin + len(block))
            slope = self._scale_and_cap_(block)
            other = None if target is None else target[begin : begin + step]
            value, by_product = self.kernel(block, at, other, gradient=gradient)
            values[at] = value
            if by_product is not None:
                by_products[at] = by_product
            if gradient and slope is not None:
                block.mul_(slope)
            if gradient and upstream is not None:
                block.mul_(upstream[at].unsqueeze(1))

    def _scale_and_cap_(self, z: Tensor) -> Tensor | float | None:
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
        """Add what the chunk `tokens` with dz [c, V] contributes to the gradients."""
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
        # Sums over chunks stay in fp32. Products are in half precision, and made for a part of the
        # vocabulary at a time: a whole one would be a second gradient of the weight in memory.
        step = max(1, CHUNK_BYTES // (hidden.shape[1] * 8))
        for begin in range(0, len(weight), step):
            part = slice(begin, begin + step)
            into.weight[part].add_(typed[:, part].T @ hidden)
