"""Forward passes over the tokens of many sequences in one row, with attention laid out by us.

Padding, prefixes that sequences share and caches with gaps are all the same question: which keys
does a token see? Here all tokens of a batch stand in one row [1, N] with their own positions, so
that the linear layers compute nothing twice and nothing for padding, and a `Layout` answers the
question for the attention layers. It is reached through transformers' AttentionInterface; the
kernel underneath stays the library's (`sdpa`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor, nn

from unlearnbench.models.autocast import is_half

_NAME = "unlearnbench_packed"
_LAYOUT: ContextVar[Layout] = ContextVar("layout")
_MOST = 0.05
"""Largest relative error of a state that is taken for rounding."""


class Kernel(Protocol):
    """Attention of one layer over a batch: heads, scaling and grouping are the layer's own."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """[G, w, heads, d] queries, [G, t, kv heads, d] keys and values, [G, 1, w, t] added to
        the scores, or None for a causal mask; returns [G, w, heads, d]."""
        ...


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
    """What a layer calls in place of its attention function; [1, heads, N, d] each."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        found: Tensor = sdpa_attention_forward(
            module, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, **how
        )[0]
        return found

    query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
    return _LAYOUT.get()(module, kernel, query, key, value).unsqueeze(0), None


@contextmanager
def packing(model: Any) -> Generator[None, None, None]:
    """While it lasts, `model` takes rows [1, N] only, each under `laid_out`."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    inner = getattr(model, "module", model)
    own = inner.config._attn_implementation
    inner.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        inner.set_attn_implementation(own)


@contextmanager
def laid_out(layout: Layout) -> Generator[None, None, None]:
    """Let `layout` say which keys the tokens of the row see, in all layers."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


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
