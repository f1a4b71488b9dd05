"""Keys and values in slots, one for each growing text.

Position p of a text is column p of its slot. The right token overwrites a wrong draft, and the slot
of a finished text serves the next one, so that nothing is moved and no gap has to be masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.api.observations import IntArray
from unlearnbench.evaluation.predictor import Keys
from unlearnbench.evaluation.prefix_tree import padded_array, padded_size
from unlearnbench.models.packed_attention import AttentionKernel

_GROWTH = 64
"""Columns of slots added at a time on a CPU, where the longest text is rarely reached. A GPU's have
all columns from the start: memory is reserved for them, and growing would take it twice."""


@dataclass(frozen=True, eq=False)
class SlotBatch:
    """N new tokens of some slots, and how they go through attention: G slots of w queries each.

    A slot's queries see its t first columns up to themselves. G, w and t may be padded.
    """

    positions: Tensor
    """[N] of each token in its text, which is its column."""
    slots: Tensor
    """[N] slot of each token."""
    read: Tensor | None
    """[G] slots whose keys and values are read; None for all slots in order."""
    queries: Tensor
    """[G, w] index of each query among the N tokens; of any token where padded."""
    outputs: Tensor
    """[N] place of each token among the G · w queries."""
    mask: Tensor
    """[G, 1, w, t] added to attention scores: 0 where a query sees a column, else −inf."""

    @property
    def columns(self) -> int:
        """t"""
        return self.mask.shape[3]


class SlotCache:
    """The keys and values of each layer, in slots."""

    def __init__(self, slots: int, longest: int, dtype: torch.dtype, device: torch.device) -> None:
        """`longest`: tokens of the longest text that a slot will store."""
        self.slots, self.longest, self.dtype, self.device = slots, longest, dtype, device
        self._stores: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # [slots, columns, kv heads, d]

    def arrays(
        self, slots: Sequence[int], begins: Sequence[int], widths: Sequence[int]
    ) -> tuple[IntArray, ...]:
        """What `batch` takes, for the next `widths` tokens of each of `slots`, from positions
        `begins` on. Their shapes are padded on a GPU, where a token stands for another one."""
        kind, lengths = self.device.type, np.array(widths)
        ends = np.cumsum(lengths)
        column = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # [N] among own new ones
        positions = np.repeat(np.array(begins), lengths) + column  # [N]
        # With most slots in use, reading all of them is cheaper than picking those in use.
        read_all = 2 * len(slots) > self.slots
        group = np.array(slots) if read_all else np.arange(len(slots))
        count = self.slots if read_all else min(padded_size(len(slots), kind), self.slots)
        shape = (count, padded_size(int(lengths.max()), kind))  # G, w
        row = np.repeat(group, lengths)  # [N]
        queries, last_seen = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        queries[row, column] = np.arange(ends[-1])
        last_seen[row, column] = positions
        return (
            padded_array(positions, kind),
            padded_array(np.repeat(np.array(slots), lengths), kind),
            np.resize(slots, 0 if read_all else count),  # some twice
            queries,
            padded_array(row * shape[1] + column, kind),
            last_seen,
            np.arange(min(padded_size(int(positions.max()) + 1, kind), self.longest)),  # t
        )

    def batch(
        self,
        positions: Tensor,
        slots: Tensor,
        read: Tensor,
        queries: Tensor,
        outputs: Tensor,
        last_seen: Tensor,
        columns: Tensor,
    ) -> SlotBatch:
        """Lay out tokens by `arrays` on the device."""
        hidden = columns > last_seen.unsqueeze(2)  # [G, w, t]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)
        return SlotBatch(positions, slots, read if len(read) else None, queries, outputs, mask)

    def _to_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def attend(
        self,
        batch: SlotBatch,
        layer: nn.Module,
        kernel: AttentionKernel,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        """Attention of one layer for `batch`, a `Layout`; stores its keys and values."""
        query, key, value = (t.to(self.dtype) for t in (query, key, value))
        stores = self._grown(layer, key, value, batch.columns)
        for store, new in zip(stores, (key, value), strict=True):
            store[batch.slots, batch.positions] = new
        keys, values = (store[:, : batch.columns] for store in stores)
        if batch.read is not None:
            keys, values = keys[batch.read], values[batch.read]
        return kernel(query[batch.queries], keys, values, batch.mask).flatten(0, 1)[batch.outputs]

    def _grown(
        self, layer: nn.Module, key: Tensor, value: Tensor, needed: int
    ) -> tuple[Tensor, Tensor]:
        """The stores of a layer, with at least `needed` columns."""
        before = self._stores.get(layer)
        have = 0 if before is None else before[0].shape[1]
        if needed > have:
            columns = -(-needed // _GROWTH) * _GROWTH
            columns = columns if self.device.type == "cpu" else self.longest
            # Zeros, not uninitialised: a hidden value counts 0 times, and 0 × NaN is NaN.
            grown = tuple(t.new_zeros(self.slots, columns, *t.shape[1:]) for t in (key, value))
            for old, new in zip(before or (), grown, strict=False):
                new[:, :have] = old
            self._stores[layer] = (grown[0], grown[1])
        return self._stores[layer]

    def copy(self, sources: Sequence[int], targets: Sequence[int], columns: int) -> None:
        """Copy the first `columns` of some slots, which they have, to others."""
        sent = np.array([sources, targets], dtype=np.int64)
        source, target = self._to_device(sent).unbind()
        for stores in self._stores.values():
            for store in stores:
                store[target, :columns] = store[source, :columns]

    def put(self, slot: int, keys: Keys) -> int:
        """Store the keys and values of a text's first tokens in a slot; returns their number."""
        count = 0
        for layer, pair in keys.items():
            count = len(pair[0])
            for store, new in zip(self._grown(layer, *pair, count), pair, strict=True):
                store[slot, :count] = new
        return count

    def compact(self, slots: Sequence[int]) -> None:
        """Drop all slots but these, which are renumbered from 0."""
        index = self._to_device(np.array(slots, dtype=np.int64))
        self.slots = len(slots)
        for layer, (keys, values) in self._stores.items():
            self._stores[layer] = (keys[index], values[index])
