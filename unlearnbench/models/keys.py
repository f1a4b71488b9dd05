"""Keys and values of texts that go on: what memory there is for them, and where they are kept.

They are in the dtype of products. Under autocast rotated keys leave a model in float32, which the
attention would convert again for every token; converted once they take half, and are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from unlearnbench.models.autocast import product_dtype

SHARE = 0.7
"""Of a GPU's free memory that keys and values may take; the rest is for what is computed."""


def fitting_tokens(model: Any, tokens: int) -> int:
    """At most `tokens`, and on a GPU no more than have room for their keys and values there.

    Call it where the model computes: under the autocast, if there is one.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cuda":
        return tokens
    dtype = product_dtype(parameter)
    free = torch.cuda.mem_get_info(parameter.device)[0]
    free += torch.cuda.memory_reserved(parameter.device)
    free -= torch.cuda.memory_allocated(parameter.device)
    if dtype != parameter.dtype:  # autocast keeps a copy of each matrix
        free -= sum(p.numel() for p in model.parameters() if p.ndim > 1) * dtype.itemsize
    each = _numbers_of_a_token(model.config.get_text_config()) * dtype.itemsize
    return max(min(tokens, int(SHARE * free / each)), 1)


def _numbers_of_a_token(config: Any) -> int:
    """In keys and values of all layers."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    width *= getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * width)


def cache_of(model: Any, columns: int) -> Any:
    """An empty cache for texts of at most `columns` tokens; allocated once, and never moved."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        _Allocated(columns) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


class _Allocated(DynamicLayer):
    """A layer's keys and values [B, heads, columns, d]; `keys` and `values` are what is in use."""

    def __init__(self, columns: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.columns = columns

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = product_dtype(key_states), key_states.device
        self._stores = [
            t.new_empty((*t.shape[:2], self.columns, t.shape[3]), dtype=self.dtype)
            for t in (key_states, value_states)
        ]
        self.keys, self.values = (store[:, :, :0] for store in self._stores)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append to what is there; returns all of it."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[:, :, begin:end] = new
        self.keys, self.values = (store[:, :, :end] for store in self._stores)
        return self.keys, self.values
