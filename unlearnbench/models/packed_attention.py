"""Forward passes over the tokens of many sequences packed into one row, with custom attention.

Padding, shared prefixes and caches with gaps pose the same question: which keys does a token see?
All tokens of a batch are packed into one row [1, N], each with its own position, so that the linear
layers compute nothing twice and nothing for padding. A `Layout` answers the question by computing
the attention of one layer. A pass goes as follows:

1. `packing` replaces the model's attention functions by `_attention`.
2. The caller runs the model with `layout_argument(layout)` among its keyword arguments. The model
   passes them on to its attention layers, also through activation checkpointing.
3. `_attention` calls the layout with an `AttentionKernel`, which calls the library's own attention
   (`sdpa`) with the layer's heads, scaling and grouping.

Symbols: N tokens of a packed row, d size of a head, G groups of queries that are computed together,
w queries and t keys of such a group.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from unlearnbench.models.device import is_half, product_dtype

_NAME = "unlearnbench_packed"
"""Name of `_attention` among transformers' attention functions."""
_LAYOUT = "unlearnbench_layout"
"""Name of the keyword argument that carries the layout."""
_LARGEST_ROUNDING = 0.05
"""Largest relative error of a state that may be rounding."""
_UNGROUPED = nn.Identity()
"""Stands for a layer without groups of heads."""


@dataclass(frozen=True)
class AttentionKernel:
    """Attention of one layer, with its own heads, scaling and grouping."""

    layer: nn.Module
    options: Mapping[str, Any]
    """The keyword arguments of the layer's attention function."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Compute attention in G groups that do not see each other.

        Args:
            query: [G, w, heads, d]
            key: [G, t, kv heads, d]
            value: [G, t, kv heads, d]
            mask: Numbers [G, 1, w, t] that are added to the scores. None: the mask is causal.

        Returns:
            [G, w, heads, d]
        """
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        group_count, width, heads, size = query.shape
        kv_heads = key.shape[2]
        heads_per_key = heads // kv_heads
        # The library would copy keys and values for each of the heads that share them. Instead,
        # the queries of these heads become further queries of one head. That repeats the mask,
        # which is worth it if the mask is much smaller than the keys.
        folded = mask is not None and heads_per_key > 1 and 4 * width <= kv_heads * size
        layer = self.layer
        if folded and mask is not None:
            layer = _UNGROUPED
            query = query.unflatten(2, (-1, heads_per_key)).transpose(2, 3).flatten(1, 2)
            mask = mask.repeat_interleave(heads_per_key, 2)
        attended: Tensor = sdpa_attention_forward(
            layer,
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            mask,
            **self.options,
        )[0]
        if folded:
            attended = attended.unflatten(1, (width, heads_per_key)).transpose(2, 3)
        return attended.reshape(group_count, width, heads, size)

    def rows(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int
    ) -> Tensor:
        """Compute causal attention in packed rows, without padding or dropout.

        Args:
            query: [N, heads, d]
            key: [N, kv heads, d]
            value: [N, kv heads, d]
            bounds: [rows + 1] int32: where each row begins, and the end of the last.
            longest: Tokens of the longest row.

        Returns:
            [N, heads, d]
        """
        from torch.nn.attention.varlen import varlen_attn

        kind = product_dtype(query)
        query, key, value = (tensor.to(kind) for tensor in (query, key, value))
        # Before torch 2.12 the kernel has no grouped heads. Copying them costs little here.
        heads_per_key = query.shape[1] // key.shape[1]
        if heads_per_key > 1:
            key = key.repeat_interleave(heads_per_key, 1)
            value = value.repeat_interleave(heads_per_key, 1)
        attended: Any = varlen_attn(
            query,
            key,
            value,
            bounds,
            bounds,
            longest,
            longest,
            scale=self.options.get("scaling"),
            window_size=(-1, 0),  # causal
        )
        return cast(Tensor, attended)


def has_varlen_kernel(tensor: Tensor) -> bool:
    """Whether there may be a kernel for packed rows on the device of `tensor`."""
    if tensor.device.type != "cuda" or not is_half(tensor):
        return False
    if torch.are_deterministic_algorithms_enabled():  # cuDNN may compute its backward pass
        return False
    return find_spec("torch.nn.attention.varlen") is not None  # since torch 2.10


class Layout(Protocol):
    """Attention in which each token of a packed row sees its own keys."""

    def __call__(
        self,
        layer: nn.Module,
        /,
        kernel: AttentionKernel,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        """Compute the attention of one layer.

        Args:
            layer: The layer.
            kernel: Its attention, for queries and keys that the layout puts together.
            query: [N, heads, d]
            key: [N, kv heads, d]
            value: [N, kv heads, d]

        Returns:
            [N, heads, d]
        """
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer by a layout. Tensors are [1, heads, N, d].

    Raises:
        KeyError: The model does not pass its keyword arguments on.
    """
    layout: Layout = options.pop(_LAYOUT)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    attended = layout(module, AttentionKernel(module, options), query, key, value)
    return attended.unsqueeze(0), None


def _sdpa(module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, None]:
    """Compute the library's `sdpa`, or a layout's attention if there is one in the arguments.

    Activation checkpointing computes a layer again in the backward pass. By then the model has its
    own attention back, and only the layer's arguments still have the layout.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if _LAYOUT in options:
        return _attention(module, *tensors, **options)
    return sdpa_attention_forward(module, *tensors, **options)


@contextmanager
def packing(model: Any) -> Generator[None, None, None]:
    """Let `model` take packed rows [1, N], each with a `layout_argument`, and no other input."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    AttentionInterface.register("sdpa", _sdpa)
    inner = getattr(model, "module", model)
    implementation = inner.config._attn_implementation
    inner.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        inner.set_attn_implementation(implementation)


def layout_argument(layout: Layout) -> dict[str, Any]:
    """Return the keyword argument of a model through which `layout` computes its attention."""
    return {_LAYOUT: layout}


_WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "attention_window_size",
    "local_attention",
    "window_size",
    "index_topk",
)
"""Fields of configurations that bound how many tokens a token sees in some of the layers."""
_KINDS_OF_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Kinds of layers, by transformers' names, in which a token sees all others of a short row."""


def can_pack(model: Any, longest: int) -> bool:
    """Whether the attention of `model` can be replaced, as far as its configuration says.

    Layouts are causal: they support neither windows and chunks that rows outgrow, nor layers with a
    recurrent state.

    Args:
        model: A causal language model, or a wrapper around one.
        longest: Tokens of the longest sequence.
    """
    inner = getattr(model, "module", model)
    config = inner.config.get_text_config()
    layer_kinds = {*(getattr(config, "layer_types", None) or ())}
    if not layer_kinds <= _KINDS_OF_LAYERS:
        return False
    # Llama 4 scales queries by their index in the packed row, not by their position in the text.
    if getattr(config, "attn_temperature_tuning", False):
        return False
    for name in _WINDOWS:
        size = getattr(config, name, None)
        if isinstance(size, int) and 0 < size < longest:
            return False
    return getattr(inner.config, "_attn_implementation", None) == "sdpa"


def states_match(
    packed: Tensor, rows: Tensor, other_rows: Callable[[], Tensor] | None = None
) -> bool:
    """Whether the states of packed tokens are those of single rows, except for rounding.

    States are compared by position, because one wrong key changes few states. If sums depend on the
    number of rows, as on GPUs, half precision differs by about 1 %, and by more in deep models. A
    layout that is wrong by a token differs by 2 to 30 %. That is why errors above 1 % are compared
    with the rounding of this model.

    Args:
        packed: States [P, ·] of packed tokens.
        rows: The same states of single rows.
        other_rows: Computes the same states in batches of another shape, whose only difference is
            rounding. None if there are no such batches.
    """
    has_half_precision = is_half(packed)
    error = _error(packed, rows)
    if error <= (0.01 if has_half_precision else 1e-3):
        return True
    if other_rows is None:
        return has_half_precision and error <= _LARGEST_ROUNDING
    return error <= min(_LARGEST_ROUNDING, 3 * _error(other_rows(), rows))


def long_row_matches(packed: Tensor, row: Tensor) -> bool:
    """Whether the states [P, ·] of a long row are the same on average, packed and by itself.

    A mask that differs from a causal one only in long rows concerns most of the row's tokens, so
    the mean shows it. The largest error of so many tokens in half precision would show less.
    """
    error = float(_errors(packed, row).mean())
    return error <= (_LARGEST_ROUNDING if is_half(packed) else 1e-3)


def _error(states: Tensor, expected: Tensor) -> float:
    """Return the largest distance from an expected state, relative to that state's norm."""
    return float(_errors(states, expected).amax())


def _errors(states: Tensor, expected: Tensor) -> Tensor:
    """Return the distances [P] from expected states, relative to their norms."""
    states = states.double().nan_to_num()
    expected = expected.double().nan_to_num()
    distance = (states - expected).norm(dim=-1)
    errors: Tensor = distance / expected.norm(dim=-1)
    return errors.nan_to_num(nan=0.0)  # 0/0: both are zeros
