"""The output layer and what is computed from its logits, one chunk of tokens at a time.

With 4096 tokens and 128 256 vocabulary entries, one fp32 matrix [tokens, vocabulary] is 2.1 GB, and
a loss written with library functions holds several of them. Here at most one chunk of logits exists
at a time. For each chunk:

1. compute its logits from the hidden states,
2. let a `LogitKernel` compute the values and turn the logits, in place, into the gradient of the
   values, by a formula derived by hand,
3. add that gradient's contribution to the gradients of hidden states, weight and bias.

Symbols: N tokens, H hidden size, V vocabulary entries, c tokens of a chunk, n tokens of a block of
a chunk, z logits, ∂value/∂z gradient of a token's value with respect to the token's own logits.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unlearnbench.losses.lm_head import Projection

CHUNK_BYTES = 256 * 2**20
"""Size of a chunk's logits. A few large chunks read and write the weight's gradient less often."""
CACHED_BYTES = 64 * 2**20
"""Up to this size logits are kept for the backward pass: computing them again takes longer."""
_BLOCK_BYTES = {"cpu": 4 * 2**20}
"""Size of the logits that a kernel works on at once, by device; on a CPU they stay in its cache."""
_BLOCK_BYTES_ELSEWHERE = 64 * 2**20


class LogitKernel(ABC):
    """One value per token, and its gradient with respect to the token's logits."""

    def target_logits(self, tokens: slice, compute: torch.dtype) -> Tensor | None:
        """Compute the logits that a chunk is compared with, for example a reference model's.

        Args:
            tokens: The chunk.
            compute: Dtype of the chunk's own matrix product. It is passed on because the backward
                pass runs outside autocast.

        Returns:
            Logits [c, V], or None if the kernel compares with nothing.
        """
        return None

    @abstractmethod
    def __call__(
        self, z: Tensor, tokens: slice, other: Tensor | None, *, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the values of a block.

        Args:
            z: Logits [n, V]. The kernel may overwrite them, and has to replace them by ∂value/∂z if
                `gradient` is true.
            tokens: The tokens of the block.
            other: Rows [n, V] of `target_logits` for these tokens, which may be overwritten.
            gradient: Whether ∂value/∂z is needed.

        Returns:
            Values [n], and a by-product [n] that has no gradient, or None.
        """


class Strategy(Enum):
    """When the gradients of hidden states, weight and bias are computed.

    The backward pass brings a weight for each token, the gradient of the loss with respect to the
    token's value. The gradients of weight and bias are sums over tokens, so unequal weights have to
    be applied before the sum. That is why no strategy is best for all losses.
    """

    RECOMPUTE = "recompute"
    """Keep nothing. Compute the logits again in the backward pass, which takes four matrix products
    instead of three. Without a backward pass this is the cheapest strategy."""
    CACHE = "cache"
    """Keep ∂value/∂z of all tokens [N, V] until the backward pass. Possible for few tokens only."""
    EAGER = "eager"
    """Compute the gradients together with the values, as if each token had weight 1, and scale them
    in the backward pass. If the weights turn out to differ, continue as `RECOMPUTE` does."""


@dataclass(frozen=True, eq=False)
class _LogitOptions:
    """How logits are computed, and which kernel is applied to them."""

    scale: float
    cap: float | None
    kernel: LogitKernel
    compute: torch.dtype
    """Dtype of the matrix products."""


class _KernelOutput(NamedTuple):
    """What a kernel returns for all tokens."""

    values: Tensor
    """[N]"""
    by_products: Tensor
    """[N], zeros if the kernel has no by-product."""


class _Needed(NamedTuple):
    """Which inputs need a gradient."""

    hidden: bool
    weight: bool
    bias: bool


def apply_kernel(
    hidden: Tensor, projection: Projection, kernel: LogitKernel, *, eager: bool
) -> tuple[Tensor, Tensor]:
    """Compute a kernel's values for hidden states, with gradients for these and the output layer.

    Args:
        hidden: Final hidden states [N, H], or logits [N, V] if the projection has no weight.
        projection: The output layer.
        kernel: What to compute from the logits.
        eager: Whether the values will probably be averaged, so that all tokens have the same weight
            in the loss. A wrong guess costs time, but gives the same gradients.

    Returns:
        Values [N], and by-products [N] that have no gradient.
    """
    compute = _compute_dtype(hidden, projection)
    options = _LogitOptions(projection.scale, projection.cap, kernel, compute)
    strategy = _choose_strategy(hidden, projection, options, eager=eager)
    apply: Any = _ChunkedLoss.apply
    if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
        # Chunks and buffers are laid out by hand: there is nothing for torch.compile to improve.
        # This imports the compiler, so it is left out if nothing can be compiled.
        apply = torch.compiler.disable(apply)
    tensors: tuple[Tensor, Tensor] = apply(
        hidden, projection.weight, projection.bias, options, strategy
    )
    return tensors


def _compute_dtype(hidden: Tensor, projection: Projection) -> torch.dtype:
    """Return the dtype of the matrix products: autocast's, or the weight's outside autocast."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    if projection.weight is None:
        return hidden.dtype
    return projection.weight.dtype


def _choose_strategy(
    hidden: Tensor, projection: Projection, options: _LogitOptions, *, eager: bool
) -> Strategy:
    """Choose the fastest strategy that the dtype and the number of tokens allow."""
    weight = projection.weight
    bias = projection.bias
    trains_layer = any(tensor is not None and tensor.requires_grad for tensor in (weight, bias))
    has_backward_pass = torch.is_grad_enabled() and (trains_layer or hidden.requires_grad)
    if not has_backward_pass:
        return Strategy.RECOMPUTE

    # Gradients of hidden states are not summed over tokens, so they can be scaled by any weights.
    can_scale_later = eager or not trains_layer
    # float16 cannot hold the gradients of tokens that each weigh 1: sums over tokens overflow, and
    # small ones are lost. The backward pass brings weights that contain the loss scale.
    if can_scale_later and options.compute != torch.float16:
        return Strategy.EAGER
    logits = LogitChunks(hidden, weight, bias, options)
    if logits.bytes <= min(CACHED_BYTES, CHUNK_BYTES):
        return Strategy.CACHE
    return Strategy.RECOMPUTE


class _ChunkedLoss(torch.autograd.Function):
    """The kernel's values as a function of hidden states, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        options: _LogitOptions,
        strategy: Strategy,
    ) -> tuple[Tensor, Tensor]:
        """Compute values [N] and by-products [N], and keep in `ctx` what the strategy keeps."""
        ctx.save_for_backward(hidden, weight, bias)
        ctx.options = options
        ctx.dz = None  # of CACHE
        ctx.gradients = None  # of EAGER
        chunks = LogitChunks(hidden, weight, bias, options)
        match strategy:
            case Strategy.RECOMPUTE:
                output = chunks.output()
            case Strategy.CACHE:
                output, ctx.dz = chunks.output_and_dz()
            case Strategy.EAGER:
                needed = _Needed(*ctx.needs_input_grad[:3])
                output, ctx.gradients = chunks.output_and_gradients(needed)
        ctx.mark_non_differentiable(output.by_products)
        return output.values, output.by_products

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Compute the gradients of the inputs of `forward`.

        Args:
            ctx: What `forward` kept.
            upstream: The weights [N] of the tokens' values in the loss. Autograd also passes a
                gradient of the by-products, which is not used.
        """
        token_weights = upstream[0]
        needed = _Needed(*ctx.needs_input_grad[:3])
        hidden, weight, bias = ctx.saved_tensors
        chunks = LogitChunks(hidden, weight, bias, ctx.options)
        dz: Tensor | None = ctx.dz
        gradients: _Gradients | None = ctx.gradients
        # Both are scaled in place, so they serve once. A second backward pass recomputes.
        ctx.dz = None
        ctx.gradients = None

        if dz is not None:
            dz.mul_(token_weights.unsqueeze(1))
            gradients = chunks.gradients_of(dz, needed)
        elif gradients is not None and gradients.can_be_scaled_by(token_weights):
            gradients.scale_(token_weights)
        else:
            _, gradients = chunks.output_and_gradients(needed, token_weights)
        # Autograd expects a value for each input of `forward`, also for options and strategy.
        return (*gradients.typed_like((hidden, weight, bias)), None, None)


@dataclass(eq=False)
class _Gradients:
    """The gradients of those inputs that need one."""

    hidden: Tensor | None
    """[N, H]"""
    weight: Tensor | None
    """[V, H]"""
    bias: Tensor | None
    """[V]"""

    @property
    def is_summed_over_tokens(self) -> bool:
        """Whether there is a gradient in which single tokens can no longer be told apart."""
        return self.weight is not None or self.bias is not None

    def can_be_scaled_by(self, token_weights: Tensor) -> bool:
        """Whether gradients of tokens of weight 1 can be scaled to these weights [N]."""
        return not self.is_summed_over_tokens or _all_equal(token_weights)

    def scale_(self, token_weights: Tensor) -> None:
        """Scale the gradients of tokens of weight 1 to their own weights [N], in place."""
        if not self.is_summed_over_tokens:
            if self.hidden is not None:
                self.hidden.mul_(token_weights.unsqueeze(1))
            return
        if not len(token_weights):
            return  # all gradients are 0
        for gradient in (self.hidden, self.weight, self.bias):
            if gradient is not None:
                gradient.mul_(token_weights[0])

    def typed_like(self, inputs: Sequence[Tensor]) -> Iterator[Tensor | None]:
        """Convert each gradient to the dtype of its input, as autograd requires."""
        for gradient, tensor in zip((self.hidden, self.weight, self.bias), inputs, strict=True):
            yield None if gradient is None else gradient.to(tensor.dtype)


def _all_equal(weights: Tensor) -> bool:
    """Whether the weights [N] are known to be one number.

    The backward pass of a sum or a mean passes one number in memory that N places share (stride 0).
    Separate numbers are compared on a CPU only: on a GPU the comparison waits for all queued work,
    which takes longer than computing the logits again.
    """
    if len(weights) < 2 or weights.stride() == (0,):
        return True
    return weights.device.type == "cpu" and bool((weights == weights[0]).all())


@dataclass(frozen=True, eq=False)
class LogitChunks:
    """The logits of N tokens, computed and consumed one chunk at a time."""

    hidden: Tensor
    """[N, H] final hidden states; [N, V] logits if there is no weight."""
    weight: Tensor | None
    """[V, H]"""
    bias: Tensor | None
    """[V]"""
    options: _LogitOptions

    @property
    def exact(self) -> torch.dtype:
        """Dtype of logits, values and sums: fp32 or fp64."""
        return torch.promote_types(self.hidden.dtype, torch.float32)

    @property
    def vocabulary(self) -> int:
        """Number of vocabulary entries, V."""
        return self.hidden.shape[1] if self.weight is None else len(self.weight)

    @property
    def bytes(self) -> int:
        """Size of the logits of all tokens."""
        return len(self.hidden) * self.vocabulary * self.exact.itemsize

    def output(self) -> _KernelOutput:
        """Compute values and by-products without a gradient."""
        output, _ = self.output_and_gradients(_Needed(hidden=False, weight=False, bias=False))
        return output

    def output_and_gradients(
        self, needed: _Needed, token_weights: Tensor | None = None
    ) -> tuple[_KernelOutput, _Gradients]:
        """Compute values, by-products and the needed gradients, chunk by chunk.

        Args:
            needed: Which of hidden states, weight and bias need a gradient.
            token_weights: Weights [N] of the tokens in the gradients. None: all tokens weigh 1.
        """
        count = len(self.hidden)
        weight = self._typed_weight()
        gradient = any(needed)
        gradients = self._zero_gradients(needed)
        output = self._zero_output()

        chunk_size = max(1, CHUNK_BYTES // (self.vocabulary * self.exact.itemsize))
        # All chunks are computed in the same memory, one after the other.
        buffer = self._empty_logits(min(chunk_size, count))
        for tokens in _slices(count, chunk_size):
            z = buffer[: tokens.stop - tokens.start]  # [c, V]
            self._compute_logits(tokens, weight, out=z)
            self._run_kernel(z, tokens, output, token_weights, gradient=gradient)
            if gradient:
                self._accumulate(z, tokens, weight, gradients)
        return output, gradients

    def output_and_dz(self) -> tuple[_KernelOutput, Tensor]:
        """Compute values, by-products and ∂value/∂z [N, V], with all tokens in one chunk."""
        all_tokens = slice(0, len(self.hidden))
        output = self._zero_output()
        z = self._empty_logits(len(self.hidden))
        self._compute_logits(all_tokens, self._typed_weight(), out=z)
        self._run_kernel(z, all_tokens, output, None, gradient=True)
        return output, z

    def gradients_of(self, dz: Tensor, needed: _Needed) -> _Gradients:
        """Compute the needed gradients from the gradient dz [N, V] of all logits."""
        gradients = self._zero_gradients(needed)
        self._accumulate(dz, slice(0, len(dz)), self._typed_weight(), gradients)
        return gradients

    def _typed_weight(self) -> Tensor | None:
        """Return the weight [V, H] in the dtype of the matrix products."""
        return None if self.weight is None else self.weight.to(self.options.compute)

    def _zero_output(self) -> _KernelOutput:
        values, by_products = self.hidden.new_zeros((2, len(self.hidden)), dtype=self.exact)
        return _KernelOutput(values, by_products)

    def _zero_gradients(self, needed: _Needed) -> _Gradients:
        gradients: list[Tensor | None] = []
        for tensor, is_needed in zip((self.hidden, self.weight, self.bias), needed, strict=True):
            if tensor is None or not is_needed:
                gradients.append(None)
            else:
                gradients.append(torch.zeros_like(tensor, dtype=self.exact))
        return _Gradients(*gradients)

    def _empty_logits(self, count: int) -> Tensor:
        return self.hidden.new_empty((count, self.vocabulary), dtype=self.exact)

    def _compute_logits(self, tokens: slice, weight: Tensor | None, *, out: Tensor) -> None:
        """Write h Wᵀ + b of a chunk, before scale and cap, into `out` [c, V]."""
        compute = self.options.compute
        hidden = self.hidden[tokens]  # [c, H]
        if weight is None:
            out.copy_(hidden)
        elif out.dtype == compute:
            torch.mm(hidden.to(compute), weight.T, out=out)
        else:
            out.copy_(hidden.to(compute) @ weight.T)
        if self.bias is not None:
            out.add_(self.bias)

    def _run_kernel(
        self,
        z: Tensor,
        tokens: slice,
        output: _KernelOutput,
        token_weights: Tensor | None,
        *,
        gradient: bool,
    ) -> None:
        """Apply the kernel to a chunk, in blocks that fit the device's cache.

        Args:
            z: Logits [c, V] before scale and cap. They are overwritten: if `gradient` is true, by
                the gradient of the values with respect to them, times the tokens' weights.
            tokens: The chunk.
            output: Values and by-products of all tokens. The chunk's places are filled in.
            token_weights: Weights [N] of all tokens. None: all tokens weigh 1.
            gradient: Whether the gradient is needed.
        """
        target = self.options.kernel.target_logits(tokens, self.options.compute)
        block_bytes = _BLOCK_BYTES.get(z.device.type, _BLOCK_BYTES_ELSEWHERE)
        block_size = max(1, block_bytes // (z.shape[1] * z.element_size()))
        for rows in _slices(len(z), block_size):
            block = z[rows]
            block_tokens = slice(tokens.start + rows.start, tokens.start + rows.stop)
            block_target = None if target is None else target[rows]
            slope = self._scale_and_cap_(block)
            values, by_products = self.options.kernel(
                block, block_tokens, block_target, gradient=gradient
            )
            output.values[block_tokens] = values
            if by_products is not None:
                output.by_products[block_tokens] = by_products
            if gradient and slope is not None:
                block.mul_(slope)  # chain rule: the kernel got scaled and capped logits
            if gradient and token_weights is not None:
                block.mul_(token_weights[block_tokens].unsqueeze(1))

    def _scale_and_cap_(self, z: Tensor) -> Tensor | float | None:
        """Replace z by cap · tanh(scale · z / cap), in place, or by scale · z without a cap.

        Returns:
            The derivative with respect to z: [n, V] with a cap, a number without, None if it is 1.
        """
        scale = self.options.scale
        cap = self.options.cap
        if scale != 1:
            z.mul_(scale)
        if not cap:
            return scale if scale != 1 else None
        z.div_(cap).tanh_()
        slope = (1 - z.square()).mul_(scale)
        z.mul_(cap)
        return slope

    def _accumulate(
        self, dz: Tensor, tokens: slice, weight: Tensor | None, gradients: _Gradients
    ) -> None:
        """Add a chunk's contribution to the gradients.

        Args:
            dz: Gradient [c, V] of the chunk's logits.
            tokens: The chunk.
            weight: The weight [V, H] in the dtype of the matrix products.
            gradients: The gradients that are needed. Each token has its own row in those of the
                hidden states, and adds to those of weight and bias.
        """
        if gradients.bias is not None:
            gradients.bias.add_(dz.sum(dim=0))
        if weight is None:
            if gradients.hidden is not None:
                gradients.hidden[tokens] = dz
            return
        compute = self.options.compute
        typed_dz = dz.to(compute)
        if gradients.hidden is not None:
            gradients.hidden[tokens] = typed_dz @ weight
        if gradients.weight is not None:
            hidden = self.hidden[tokens].to(compute)
            _add_product(typed_dz, hidden, gradients.weight)


def _add_product(dz: Tensor, hidden: Tensor, weight_gradient: Tensor) -> None:
    """Add dzᵀ h, a chunk's contribution, to the gradient [V, H] of the weight.

    Args:
        dz: Gradient [c, V] of the chunk's logits, in the dtype of the matrix products.
        hidden: Hidden states [c, H] of the chunk, in the same dtype.
        weight_gradient: [V, H] in fp32 or fp64.
    """
    if weight_gradient.dtype == dz.dtype:
        weight_gradient.addmm_(dz.T, hidden)
        return
    # The sum over chunks stays in fp32 although the product is in half precision. The product is
    # computed for a part of the vocabulary at a time, because all of it would take as much memory
    # as the gradient itself.
    part_size = max(1, CHUNK_BYTES // (hidden.shape[1] * 8))
    for part in _slices(len(weight_gradient), part_size):
        weight_gradient[part].add_(dz[:, part].T @ hidden)


def _slices(count: int, size: int) -> Iterator[slice]:
    """Divide `count` places into consecutive slices of at most `size`."""
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))
