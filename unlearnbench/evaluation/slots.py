"""Keys and values of texts that grow, a slot for each text, for decoding many at once.

What stands at position p of a text lies in column p of its slot. A token that was guessed wrong is
overwritten by the right one, and a slot whose text is finished serves the next, so that nothing is
moved and no gap has to be masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.evaluation.shapes import rounded
from unlearnbench.models.packed import Kernel

_GROWTH = 64
"""Columns that are added at a time on a CPU: the longest text of a slot is rarely reached. A GPU's
memory is counted for the longest, and moving the rest at each growth would take it twice."""


class SlotLayout:
    """A row that holds the new tokens of some slots: each sees its text up to itself."""

    def __init__(self, slots: int, longest: int, dtype: torch.dtype, device: torch.device) -> None:
        """`longest`: tokens of the longest text that a slot will hold."""
        self.slots, self.longest, self.dtype, self.device = slots, longest, dtype, device
        self._stores: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # [slots, columns, kv heads, d]

    def expect(self, slots: Sequence[int], begins: Sequence[int], widths: Sequence[int]) -> Tensor:
        """Say what the next row holds: in each of `slots`, `widths` tokens from `begins` on.

        Returns their positions [N].
        """
        lengths, starts = np.array(widths), np.array(begins)
        ends = np.cumsum(lengths)
        inside = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        positions = np.repeat(starts, lengths) + inside
        # With most slots in use, reading all of them is cheaper than picking those in use.
        every = 2 * len(slots) > self.slots
        batch = np.array(slots) if every else np.arange(len(slots))
        kind = self.device.type
        count = self.slots if every else min(rounded(len(slots), kind), self.slots)
        shape = (count, rounded(int(lengths.max()), kind))
        rows = np.repeat(batch, lengths)
        queries, seen = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        queries[rows, inside] = np.arange(ends[-1])
        seen[rows, inside] = positions
        self._columns = min(rounded(int(positions.max()) + 1, kind), self.longest)
        hidden = torch.from_numpy(np.arange(self._columns) > seen[:, :, None]).to(self.device)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        self._mask = mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)
        self._read = None if every else self._put(np.resize(slots, count))  # some twice
        self._queries = self._put(queries)
        self._order = self._put(rows * shape[1] + inside)
        self._rows = self._put(np.repeat(np.array(slots), lengths))
        self._positions = self._put(positions)
        return self._positions

    def _put(self, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def __call__(
        self, layer: nn.Module, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of one layer, see `packed.Layout`; keeps the keys and values."""
        query, key, value = (t.to(self.dtype) for t in (query, key, value))
        stores = self._stored(layer, key, value)
        for store, new in zip(stores, (key, value), strict=True):
            store[self._rows, self._positions] = new
        keys, values = (store[:, : self._columns] for store in stores)
        if self._read is not None:
            keys, values = keys[self._read], values[self._read]
        return kernel(query[self._queries], keys, values, self._mask).flatten(0, 1)[self._order]

    def _stored(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        before = self._stores.get(layer)
        have = 0 if before is None else before[0].shape[1]
        if self._columns > have:
            columns = -(-self._columns // _GROWTH) * _GROWTH
            columns = columns if self.device.type == "cpu" else self.longest
            # Zeros, not whatever was there: a hidden value counts 0 times, and 0 × NaN is NaN.
            grown = tuple(t.new_zeros(self.slots, columns, *t.shape[1:]) for t in (key, value))
            for old, new in zip(before or (), grown, strict=False):
                new[:, :have] = old
            self._stores[layer] = (grown[0], grown[1])
        return self._stores[layer]

    def keep(self, slots: Sequence[int]) -> None:
        """Give up all slots but these, which are numbered anew."""
        index = self._put(np.array(slots, dtype=np.int64))
        self.slots = len(slots)
        for layer, (keys, values) in self._stores.items():
            self._stores[layer] = (keys[index], values[index])
