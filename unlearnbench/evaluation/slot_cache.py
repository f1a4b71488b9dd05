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
class SlotGroup:
    """G slots of w queries each; a query sees the slot's t first columns up to itself.

    G, w and t may be padded.
    """

    read: Tensor | None
    """[G] slots whose keys and values are read; None for all slots in order."""
    queries: Tensor
    """[G, w] index of each query among the batch's N tokens; of any token where padded."""
    mask: Tensor
    """[G, 1, w, t] added to attention scores: 0 where a query sees a column, else −inf."""


@dataclass(frozen=True, eq=False)
class SlotBatch:
    """N new tokens of some slots, and how they go through attention."""

    positions: Tensor
    """[N] of each token in its text, which is its column."""
    slots: Tensor
    """[N] slot of each token."""
    outputs: Tensor
    """[N] place of each token among the queries of all groups."""
    groups: Sequence[SlotGroup]


class SlotCache:
    """The keys and values of each layer, in slots."""

    def __init__(self, slots: int, longest: int, dtype: torch.dtype, device: torch.device) -> None:
        """`longest`: tokens of the longest text that a slot will store."""
        self.slots, self.longest, self.dtype, self.device = slots, longest, dtype, device
        # [slots, kv heads, columns, d]: a CPU reads a head's in one piece, up to twice as fast.
        self._stores: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def arrays(
        self, slots: Sequence[int], begins: Sequence[int], widths: Sequence[int]
    ) -> tuple[IntArray, ...]:
        """What `batch` takes, for the next `widths` tokens of each of `slots`, from positions
        `begins` on. Their shapes are padded on a GPU, where a token stands for another one."""
        kind, lengths, owners = self.device.type, np.array(widths), np.array(slots)
        ends = np.cumsum(lengths)
        column = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # [N] among own new ones
        positions = np.repeat(np.array(begins), lengths) + column  # [N]
        outputs, groups, queries = np.empty_like(column), list[IntArray](), 0
        # A few drafts would make every slot as wide as they are, and a CPU computes its padding.
        wide = lengths > 1
        split = kind == "cpu" and 0 < 2 * wide.sum() < len(slots)
        for chosen in (~wide, wide) if split else (lengths > 0,):
            tokens = np.flatnonzero(np.repeat(chosen, lengths))  # [n]
            read, indices, last_seen, places = self._group(
                owners[chosen], lengths[chosen], column[tokens], positions[tokens]
            )
            outputs[tokens] = places + queries
            queries += indices.size
            t = min(padded_size(int(positions[tokens].max()) + 1, kind), self.longest)
            groups += [read, tokens[indices], last_seen, np.arange(t)]
        every = (positions, np.repeat(owners, lengths), outputs)
        return (*(padded_array(array, kind) for array in every), *groups)

    def _group(
        self, slots: IntArray, lengths: IntArray, column: IntArray, positions: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The slots to read, or none for all; [G, w] queries and the column each sees last; and
        [n] the place of each token among them."""
        kind = self.device.type
        # With most slots in use, reading all of them is cheaper than picking those in use.
        read_all = 2 * len(slots) > self.slots
        count = self.slots if read_all else min(padded_size(len(slots), kind), self.slots)
        width = padded_size(int(lengths.max()), kind)
        row = np.repeat(slots if read_all else np.arange(len(slots)), lengths)  # [n]
        queries, last_seen = np.zeros((2, count, width), dtype=np.int64)
        queries[row, column] = np.arange(len(row))
        last_seen[row, column] = positions
        read = np.resize(slots, 0 if read_all else count)  # some twice
        return read, queries, last_seen, row * width + column

    def batch(
        self, positions: Tensor, slots: Tensor, outputs: Tensor, *groups: Tensor
    ) -> SlotBatch:
        """Lay out tokens by `arrays` on the device."""
        parts = [self._laid_out(*groups[i : i + 4]) for i in range(0, len(groups), 4)]
        return SlotBatch(positions, slots, outputs, parts)

    def _laid_out(
        self, read: Tensor, queries: Tensor, last_seen: Tensor, columns: Tensor
    ) -> SlotGroup:
        hidden = columns > last_seen.unsqueeze(2)  # [G, w, t]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)
        return SlotGroup(read if len(read) else None, queries, mask)

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
        needed = max(group.mask.shape[3] for group in batch.groups)
        stores = self._grown(layer, key, value, needed)
        for store, new in zip(stores, (key, value), strict=True):
            store[batch.slots, :, batch.positions] = new
        results: list[Tensor] = []
        for group in batch.groups:
            seen = (store[:, :, : group.mask.shape[3]] for store in stores)
            keys, values = (t if group.read is None else t[group.read] for t in seen)
            pair = keys.transpose(1, 2), values.transpose(1, 2)
            results.append(kernel(query[group.queries], *pair, group.mask).flatten(0, 1))
        return torch.cat(results)[batch.outputs]

    def _grown(
        self, layer: nn.Module, key: Tensor, value: Tensor, needed: int
    ) -> tuple[Tensor, Tensor]:
        """The stores of a layer, with at least `needed` columns."""
        before = self._stores.get(layer)
        have = 0 if before is None else before[0].shape[2]
        if needed > have:
            columns = -(-needed // _GROWTH) * _GROWTH
            columns = columns if self.device.type == "cpu" else self.longest
            # Zeros, not uninitialised: a hidden value counts 0 times, and 0 × NaN is NaN.
            shape = (self.slots, key.shape[1], columns)
            grown = key.new_zeros(*shape, key.shape[2]), value.new_zeros(*shape, value.shape[2])
            for old, new in zip(before or (), grown, strict=False):
                new[:, :, :have] = old
            self._stores[layer] = grown
        return self._stores[layer]

    def copy(self, sources: Sequence[int], targets: Sequence[int], columns: int) -> None:
        """Copy the first `columns` of some slots, which they have, to others."""
        sent = np.array([sources, targets], dtype=np.int64)
        source, target = self._to_device(sent).unbind()
        for stores in self._stores.values():
            for store in stores:
                store[target, :, :columns] = store[source, :, :columns]

    def put(self, slot: int, keys: Keys) -> int:
        """Store the keys and values of a text's first tokens in a slot; returns their number."""
        count = 0
        for layer, pair in keys.items():
            count = len(pair[0])
            for store, new in zip(self._grown(layer, *pair, count), pair, strict=True):
                store[slot, :, :count] = new.transpose(0, 1)
        return count

    def compact(self, slots: Sequence[int]) -> None:
        """Drop all slots but these, which are renumbered from 0."""
        index = self._to_device(np.array(slots, dtype=np.int64))
        self.slots = len(slots)
        for layer, (keys, values) in self._stores.items():
            self._stores[layer] = (keys[index], values[index])
