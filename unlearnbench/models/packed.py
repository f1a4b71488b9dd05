"""Forward passes over the tokens of many sequences in one row, with attention laid out by us.

Padding, prefixes that sequences share and caches with gaps are all the same question: which keys
does a token see? Here all tokens of a batch stand in one row [1, N] with their own positions, so
that the linear layers compute nothing twice and nothing for padding, and a `Layout` answers the
question for the attention layers. It reaches them through the model's keyword arguments, which
layers whose activations are computed again keep, and through transformers' AttentionInterface; the
kernel underneath stays the library's (`sdpa`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from unlearnbench.models.autocast import is_half, product_dtype

_NAME = "unlearnbench_packed"
_LAYOUT = "unlearnbench_layout"
_MOST = 0.05
"""Largest relative error of a state that is taken for rounding."""


@dataclass(frozen=True)
class Kernel:
    """Attention of one layer: heads, scaling and grouping are the layer's own."""

    layer: nn.Module
    how: Mapping[str, Any]
    """The keyword arguments that the layer gives its attention function."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """[G, w, heads, d] queries, [G, t, kv heads, d] keys and values, [G, 1, w, t] added to
        the scores, or None for a causal mask; returns [G, w, heads, d]."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        found: Tensor = sdpa_attention_forward(self.layer, query, key, value, mask, **self.how)[0]
        return found

    def rows(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int
    ) -> Tensor:
        """Causal attention in rows behind one another, without padding or dropout.

        [N, heads, d] queries, [N, kv heads, d] keys and values; returns [N, heads, d]

        bounds   [rows + 1] int32: where each row begins, and the end of the last
        longest  tokens of the longest row
        """
        from torch.nn.attention.varlen import varlen_attn

        kind = product_dtype(query)
        query, key, value = (t.to(kind) for t in (query, key, value))
        found: Any = varlen_attn(
            query,
            key,
            value,
            bounds,
            bounds,
            longest,
            longest,
            scale=self.how.get("scaling"),
            window_size=(-1, 0),  # all before, nothing behind
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return cast(Tensor, found)


def takes_rows(tensor: Tensor) -> bool:
    """True if there may be a kernel for rows behind one another on the device of `tensor`."""
    if tensor.device.type != "cuda" or not is_half(tensor):
        return False
    if torch.are_deterministic_algorithms_enabled():  # cuDNN may compute its backward pass
        return False
    return find_spec("torch.nn.attention.varlen") is not None  # since torch 2.10


class Layout(Protocol):
    """Which keys the tokens of a row see."""

    def __call__(
        self, layer: nn.Module, /, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """[N, heads, d] queries, [N, kv heads, d] keys and values; returns [N, heads, d]."""
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _: Tensor | None,
    **how: Any,
) -> tuple[Tensor, None]:
    """What a layer calls in place of its attention function; [1, heads, N, d] each.

    Raises: KeyError where the model does not pass its keyword arguments on.
    """
    layout: Layout = how.pop(_LAYOUT)
    query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
    return layout(module, Kernel(module, how), query, key, value).unsqueeze(0), None


def _sdpa(module: nn.Module, *tensors: Any, **how: Any) -> tuple[Tensor, None]:
    """The library's `sdpa`, except in a layer that is computed again for packed rows.

    By then the model has its own attention back, and only the layer has kept the layout.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if _LAYOUT in how:
        return _attention(module, *tensors, **how)
    return sdpa_attention_forward(module, *tensors, **how)


@contextmanager
def packing(model: Any) -> Generator[None, None, None]:
    """While it lasts, `model` takes rows [1, N] only, each with what `laid_out` gives."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    AttentionInterface.register("sdpa", _sdpa)
    inner = getattr(model, "module", model)
    own = inner.config._attn_implementation
    inner.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        inner.set_attn_implementation(own)


def laid_out(layout: Layout) -> dict[str, Any]:
    """Keyword arguments of a model that let `layout` decide which keys the row's tokens see."""
    return {_LAYOUT: layout}


def may_be_packed(model: Any, longest: int) -> bool:
    """Whether `model` asks for its attention where it can be laid out; says nothing of the rest.

    longest  tokens of the longest sequence: with a sliding window the layout would have to know
    """
    inner = getattr(model, "module", model)
    config = inner.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    within = not window or longest <= window
    return within and getattr(inner.config, "_attn_implementation", None) == "sdpa"


def nearly(packed: Tensor, rows: Tensor, other_rows: Callable[[], Tensor] | None = None) -> bool:
    """Whether the states [P, ·] of packed tokens are those of rows one by one, to rounding.

    other_rows  the same states from batches of another shape: what they differ by is rounding

    Position by position, since one token that sees a wrong one moves few states. Where sums depend
    on the number of rows, as on GPUs, half precision leaves about 1 %, and more in deep models; a
    layout that is wrong by a token leaves 2 to 30 %. So what is above 1 % has to be like rounding.
    """
    half, error = is_half(packed), _error(packed, rows)
    if error <= (0.01 if half else 1e-3):
        return True
    if other_rows is None:
        return half and error <= _MOST
    return error <= min(_MOST, 3 * _error(other_rows(), rows))


def _error(states: Tensor, wanted: Tensor) -> float:
    """The largest distance from a wanted state, relative to that state's norm."""
    states, wanted = states.double().nan_to_num(), wanted.double().nan_to_num()
    distance, norm = (states - wanted).norm(dim=-1), wanted.norm(dim=-1)
    return float((distance / norm).nan_to_num(nan=0.0).amax())  # 0/0: both are zeros
