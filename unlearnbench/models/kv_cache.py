"""A preallocated cache of keys and values, and how many tokens fit into memory.

Keys and values have the dtype of products. Under autocast a model's rotated keys are float32, which
attention would convert again for every token; converted once they take half the memory, and are the
same.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from unlearnbench.models.device import product_dtype

SHARE = 0.7
"""Share of a GPU's free memory for keys and values; the rest is for activations."""


def max_cached_tokens(model: Any, tokens: int) -> int:
    """`tokens`, or on a GPU the smaller number whose keys and values fit into its free memory.

    Call it inside the autocast that the model runs under, if there is one.
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
    each = _cached_values_per_token(model.config.get_text_config()) * dtype.itemsize
    return max(min(tokens, int(SHARE * free / each)), 1)


def _cached_values_per_token(config: Any) -> int:
    """Numbers in the keys and values of one token, over all layers."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    width *= getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * width)


def allocate_cache(model: Any, columns: int) -> Any:
    """An empty cache for texts of at most `columns` tokens, allocated once."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        _Allocated(columns) if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


class _Allocated(DynamicLayer):
    """A layer's keys and values [B, heads, columns, d]; `keys` and `values` are views."""

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
        """Append keys and values; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[:, :, begin:end] = new
        self.keys, self.values = (store[:, :, :end] for store in self._stores)
        return self.keys, self.values
