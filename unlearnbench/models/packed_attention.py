"""Forward passes over the tokens of many sequences packed into one row, with custom attention.

Padding, shared prefixes and caches with gaps are the same question: which keys does a token see?
All tokens of a batch are packed into one row [1, N] with their own positions, so that the linear
layers compute nothing twice and nothing for padding. A `Layout` computes attention. It reaches the
attention layers through the model's keyword arguments, which activation checkpointing passes on,
and transformers' AttentionInterface; the kernel below is still the library's (`sdpa`).
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
_LAYOUT = "unlearnbench_layout"
_MOST = 0.05
"""Largest relative error of a state that may be rounding."""


_UNGROUPED = nn.Identity()
"""Stands for a layer without groups of heads."""


@dataclass(frozen=True)
class AttentionKernel:
    """Attention of one layer, with its own heads, scaling and grouping."""

    layer: nn.Module
    how: Mapping[str, Any]
    """The keyword arguments of the layer's attention function."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """[G, w, heads, d] queries, [G, t, kv heads, d] keys and values, [G, 1, w, t] added to
        the scores, or None for a causal mask; returns [G, w, heads, d]."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        count, width, heads, size = query.shape
        groups = heads // key.shape[2]
        # The library would copy keys and values for each head of a group: the heads' queries go
        # beside each other instead, where the mask, repeated for them, is much smaller than that.
        folded = mask is not None and groups > 1 and 4 * width <= key.shape[2] * size
        if folded and mask is not None:
            query = query.unflatten(2, (-1, groups)).transpose(2, 3).flatten(1, 2)
            mask = mask.repeat_interleave(groups, 2)
        layer = _UNGROUPED if folded else self.layer
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        tensor: Tensor = sdpa_attention_forward(layer, query, key, value, mask, **self.how)[0]
        if folded:
            tensor = tensor.unflatten(1, (width, groups)).transpose(2, 3)
        return tensor.reshape(count, width, heads, size)

    def rows(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int
    ) -> Tensor:
        """Causal attention in packed rows, without padding or dropout.

        [N, heads, d] queries, [N, kv heads, d] keys and values; returns [N, heads, d]

        bounds   [rows + 1] int32: where each row begins, and the end of the last
        longest  tokens of the longest row
        """
        from torch.nn.attention.varlen import varlen_attn

        kind = product_dtype(query)
        query, key, value = (t.to(kind) for t in (query, key, value))
        # Grouped heads are copied, which costs little here: before torch 2.12 the kernel has none.
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        attn: Any = varlen_attn(
            query,
            key,
            value,
            bounds,
            bounds,
            longest,
            longest,
            scale=self.how.get("scaling"),
            window_size=(-1, 0),  # causal
        )
        return cast(Tensor, attn)


def has_varlen_kernel(tensor: Tensor) -> bool:
    """True if there may be a kernel for packed rows on the device of `tensor`."""
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
        """[N, heads, d] queries, [N, kv heads, d] keys and values; returns [N, heads, d]."""
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Replaces a layer's attention function; tensors are [1, heads, N, d].

    Raises: KeyError where the model does not pass its keyword arguments on.
    """
    layout: Layout = options.pop(_LAYOUT)
    query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
    return layout(module, AttentionKernel(module, options), query, key, value).unsqueeze(0), None


def _sdpa(module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, None]:
    """The library's `sdpa`, except where activation checkpointing computes a layer again.

    By then the model has its own attention back, and only the layer's arguments have the layout.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if _LAYOUT in options:
        return _attention(module, *tensors, **options)
    return sdpa_attention_forward(module, *tensors, **options)


@contextmanager
def packing(model: Any) -> Generator[None, None, None]:
    """Let `model` take packed rows [1, N], and no other, with a `layout_argument` each."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    AttentionInterface.register("sdpa", _sdpa)
    inner = getattr(model, "module", model)
    part = inner.config._attn_implementation
    inner.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        inner.set_attn_implementation(part)


def layout_argument(layout: Layout) -> dict[str, Any]:
    """The keyword argument of a model through which `layout` computes its attention."""
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
    """True if the attention of `model` can be replaced, as far as its configuration says.

    Layouts are causal: they support neither windows and chunks that rows outgrow, nor layers with a
    recurrent state.

    Args:
        model: A causal language model, or a wrapper around one.
        longest: Tokens of the longest sequence.
    """
    inner = getattr(model, "module", model)
    config = inner.config.get_text_config()
    kinds = {*(getattr(config, "layer_types", None) or ())}
    if not kinds <= _KINDS_OF_LAYERS:
        return False
    # Llama 4 scales queries by their index in the packed row, not by their position in the text.
    if getattr(config, "attn_temperature_tuning", False):
        return False
    windows = (getattr(config, name, None) for name in _WINDOWS)
    is_within = all(longest <= size for size in windows if isinstance(size, int) and size > 0)
    return is_within and getattr(inner.config, "_attn_implementation", None) == "sdpa"


def states_match(
    packed: Tensor, rows: Tensor, other_rows: Callable[[], Tensor] | None = None
) -> bool:
    """True if the states [P, ·] of packed tokens are those of single rows, to rounding.

    other_rows  the same states from batches of another shape, which differ by rounding alone

    Compared by position, since one wrong key changes few states. Where sums depend on the number of
    rows, as on GPUs, half precision differs by about 1 %, and more in deep models; a layout that is
    wrong by a token differs by 2 to 30 %. So errors above 1 % must be no larger than rounding.
    """
    half, error = is_half(packed), _error(packed, rows)
    if error <= (0.01 if half else 1e-3):
        return True
    if other_rows is None:
        return half and error <= _MOST
    return error <= min(_MOST, 3 * _error(other_rows(), rows))


def long_row_matches(packed: Tensor, row: Tensor) -> bool:
    """True if the states [P, ·] of a long row are the same on average, packed and by itself.

    A mask that differs from a causal one in long rows only concerns most of the row's tokens, so
    the mean tells. The largest error of so many tokens in half precision would tell less.
    """
    error = float(_errors(packed, row).mean())
    return error <= (_MOST if is_half(packed) else 1e-3)


def _error(states: Tensor, expected: Tensor) -> float:
    """The largest distance from an expected state, relative to that state's norm."""
    return float(_errors(states, expected).amax())


def _errors(states: Tensor, expected: Tensor) -> Tensor:
    """[P] distances from expected states, relative to their norms."""
    states, expected = states.double().nan_to_num(), expected.double().nan_to_num()
    distance, norm = (states - expected).norm(dim=-1), expected.norm(dim=-1)
    errors: Tensor = (distance / norm).nan_to_num(nan=0.0)  # 0/0: both are zeros
    return errors
