"""Attention of growing texts, each with its stored keys and values in a slot.

`decoding.py` explains slots. The module answers one question: how do N new tokens, some of each
text, go through an attention kernel that takes rectangles only? The tokens of a slot become one row
of queries [w], which sees the slot's first t columns, and rows of several slots form a `SlotGroup`:

    new tokens        queries [G, w]      keys of columns [G, t], and what query 0 sees
    slot 0:  a        a ·                 x x x x x . . .
    slot 1:  b c      b c                 x x x . . . . .     (c sees one column more)
    slot 2:  d        d ·                 x x x x x x x .

A place `·` is padding, a column `.` is masked. The layout of a step is computed on the host as
integer arrays (`SlotIndices`), which are sent to the device in one copy. There they become a
`SlotBatch`, with masks. The split matters on a GPU, which replays recorded steps from integer
arrays (`models/replays.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearnbench.api.observations import IntArray
from unlearnbench.evaluation.predictor import Keys
from unlearnbench.evaluation.prefix_tree import padded_array, padded_size, rows_at
from unlearnbench.models.packed_attention import AttentionKernel

_GROWTH = 16
"""On a CPU, slots have a multiple of so many columns, and all of them are read.

A CPU reads a head's keys and values up to twice as fast if the next head's follow at once, without
columns between them that nothing has been stored in. That saves more than the columns that are
moved again and again cost.

On a GPU, slots have all columns from the start: memory is reserved for them, and growing would take
it twice.
"""

_Array = TypeVar("_Array")
"""`IntArray` on the host, or `Tensor` on the device."""


@dataclass(frozen=True, eq=False)
class GroupIndices(Generic[_Array]):
    """The layout of a `SlotGroup` as integers."""

    read: _Array
    """[G] slots whose keys and values are read. Empty if all slots are read, in order."""
    queries: _Array
    """[G, w] index of each query among the step's N tokens; of any token where padded."""
    last_seen: _Array
    """[G, w] last column that each query sees."""
    columns: _Array
    """[t] 0, 1, …, t − 1"""


_PER_GROUP = 4
"""Arrays of a group."""


@dataclass(frozen=True, eq=False)
class SlotIndices(Generic[_Array]):
    """The layout of a step as integers. On a GPU, shapes are padded by repeating a token."""

    positions: _Array
    """[N] position of each token in its text, which is its column."""
    slots: _Array
    """[N] slot of each token."""
    outputs: _Array
    """[N] place of each token among the queries of all groups."""
    groups: tuple[GroupIndices[_Array], ...]

    def flat(self) -> tuple[_Array, ...]:
        """Return all arrays, in the order that `from_flat` takes."""
        arrays = [self.positions, self.slots, self.outputs]
        for group in self.groups:
            arrays += [group.read, group.queries, group.last_seen, group.columns]
        return tuple(arrays)

    @classmethod
    def from_flat(cls, arrays: Sequence[_Array]) -> "SlotIndices[_Array]":
        """Return the layout whose arrays these are."""
        positions, slots, outputs, *rest = arrays
        begins = range(0, len(rest), _PER_GROUP)
        groups = tuple(GroupIndices(*rest[begin : begin + _PER_GROUP]) for begin in begins)
        return SlotIndices(positions, slots, outputs, groups)


@dataclass(frozen=True, eq=False)
class SlotGroup:
    """G slots with w queries each. A query sees the first t columns of its slot, up to itself."""

    read: Tensor | None
    """[G] slots whose keys and values are read; None for all slots in order."""
    queries: Tensor
    """[G, w] index of each query among the step's N tokens; of any token where padded."""
    mask: Tensor
    """[G, 1, w, t] added to attention scores: 0 where a query sees a column, else −inf."""


@dataclass(frozen=True, eq=False)
class SlotBatch:
    """The N new tokens of a step, and how they go through attention."""

    positions: Tensor
    """[N] position of each token in its text, which is its column."""
    slots: Tensor
    """[N] slot of each token."""
    outputs: Tensor
    """[N] place of each token among the queries of all groups."""
    groups: Sequence[SlotGroup]


class SlotCache:
    """The stored keys and values of each attention layer, in slots."""

    def __init__(self, slots: int, longest: int, dtype: torch.dtype, device: torch.device) -> None:
        """Begin with empty slots.

        Args:
            slots: Number of slots.
            longest: Tokens of the longest text that a slot will store.
            dtype: Type of keys and values.
            device: Device of keys and values.
        """
        self.slots = slots
        self.longest = longest
        self.dtype = dtype
        self.device = device
        self._ends: IntArray = np.zeros(slots, dtype=np.int64)
        """[slots] number of columns that each slot needs."""
        self._columns = 0 if device.type == "cpu" else longest
        """Columns of the stores. A layer's stores are moved when they are next needed."""
        self._spare: list[Tensor] = []
        """Stores that were moved. Others may take their memory."""
        self._stores: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        """By layer, keys and values [slots, kv heads, columns, d].

        Columns come behind heads, so that a CPU reads a head's in one piece, up to twice as fast.
        """

    def indices(
        self, slots: Sequence[int], begins: Sequence[int], widths: Sequence[int]
    ) -> SlotIndices[IntArray]:
        """Compute the layout of a step.

        Args:
            slots: The slots whose texts grow.
            begins: Position of the first new token of each.
            widths: Number of new tokens of each, at least 1.
        """
        kind = self.device.type
        owners = np.array(slots)
        lengths = np.array(widths)
        ends = np.cumsum(lengths)
        # [N] 0, 1, … within the new tokens of each slot
        column = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        positions = np.repeat(np.array(begins), lengths) + column  # [N]
        self._need(owners, np.array(begins) + lengths)
        outputs = np.empty_like(column)
        groups: list[GroupIndices[IntArray]] = []
        query_count = 0
        for members in self._members_of_groups(lengths):
            tokens = np.flatnonzero(np.repeat(members, lengths))  # [n]
            group, places = self._group(
                owners[members], lengths[members], tokens, column[tokens], positions[tokens]
            )
            outputs[tokens] = places + query_count
            query_count += group.queries.size
            groups.append(group)
        return SlotIndices(
            padded_array(positions, kind),
            padded_array(np.repeat(owners, lengths), kind),
            padded_array(outputs, kind),
            tuple(groups),
        )

    def _members_of_groups(self, lengths: IntArray) -> tuple[NDArray[np.bool_], ...]:
        """Return for each group which slots belong to it, from the number of their new tokens.

        There is one group, except if few slots have a draft on a CPU. A single group would make
        every slot as wide as the few, and a CPU computes the padding.
        """
        is_wide = lengths > 1
        few_are_wide = 0 < 2 * is_wide.sum() < len(lengths)
        if self.device.type == "cpu" and few_are_wide:
            return (~is_wide, is_wide)
        return (lengths > 0,)

    def _group(
        self,
        slots: IntArray,
        lengths: IntArray,
        tokens: IntArray,
        column: IntArray,
        positions: IntArray,
    ) -> tuple[GroupIndices[IntArray], IntArray]:
        """Compute the layout of one group.

        Args:
            slots: The group's slots.
            lengths: Number of new tokens of each slot.
            tokens: [n] indices of the group's tokens among the step's N tokens.
            column: [n] index of each token among the new tokens of its slot.
            positions: [n] position of each token in its text.

        Returns:
            The group, and the place [n] of each token among its queries.
        """
        kind = self.device.type
        # If most slots are in use, reading all is cheaper than picking those in use.
        reads_all = 2 * len(slots) > self.slots
        count = self.slots if reads_all else min(padded_size(len(slots), kind), self.slots)
        width = padded_size(int(lengths.max()), kind)
        row = np.repeat(slots if reads_all else np.arange(len(slots)), lengths)  # [n]
        queries, last_seen = np.zeros((2, count, width), dtype=np.int64)
        queries[row, column] = np.arange(len(row))
        last_seen[row, column] = positions
        # Padding reads slots twice.
        read = np.resize(slots, 0 if reads_all else count)
        if reads_all and kind == "cpu":
            column_count = self._columns
        else:
            column_count = min(padded_size(int(positions.max()) + 1, kind), self.longest)
        group = GroupIndices(read, tokens[queries], last_seen, np.arange(column_count))
        return group, row * width + column

    def batch(self, indices: SlotIndices[Tensor]) -> SlotBatch:
        """Return a step's layout on the device, from `indices` there."""
        groups = [self._group_with_mask(group) for group in indices.groups]
        return SlotBatch(indices.positions, indices.slots, indices.outputs, groups)

    def _group_with_mask(self, group: GroupIndices[Tensor]) -> SlotGroup:
        hidden = group.columns > group.last_seen.unsqueeze(2)  # [G, w, t]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)
        return SlotGroup(group.read if len(group.read) else None, group.queries, mask)

    def attend(
        self,
        batch: SlotBatch,
        layer: nn.Module,
        kernel: AttentionKernel,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        """Store the keys and values of new tokens, and compute their attention in one layer.

        With `batch` given, this is a `packed_attention.Layout`.

        Args:
            batch: The step's layout.
            layer: The attention layer.
            kernel: Attention as the layer computes it.
            query: [N, heads, d]
            key: [N, kv heads, d]
            value: [N, kv heads, d]

        Returns:
            [N, heads, d]
        """
        query, key, value = (tensor.to(self.dtype) for tensor in (query, key, value))
        stores = self._stores_of(layer, key, value)
        for store, new in zip(stores, (key, value), strict=True):
            store[batch.slots, :, batch.positions] = new
        outputs: list[Tensor] = []
        for group in batch.groups:
            seen = (store[:, :, : group.mask.shape[3]] for store in stores)
            keys, values = (
                part if group.read is None else rows_at(part, group.read) for part in seen
            )
            # From [G, kv heads, t, d] to [G, t, kv heads, d], as the kernel takes them.
            by_column = keys.transpose(1, 2), values.transpose(1, 2)
            queries = rows_at(query, group.queries)
            outputs.append(kernel(queries, *by_column, group.mask).flatten(0, 1))
        return rows_at(torch.cat(outputs), batch.outputs)

    def _need(self, slots: IntArray, ends: IntArray) -> None:
        """Note the columns that slots need from now on, and choose the columns of all slots.

        Args:
            slots: Some slots.
            ends: Number of columns that each of them needs.
        """
        self._ends[slots] = ends
        if self.device.type != "cpu":
            return
        fitting = min(-(-int(self._ends.max()) // _GROWTH) * _GROWTH, self.longest)
        # Texts that follow longer ones need few columns. It is not worth to move them for one step.
        if fitting > self._columns or fitting + _GROWTH < self._columns:
            self._columns = fitting

    def _stores_of(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stores of a layer, with `_columns` columns.

        Args:
            layer: The attention layer.
            key: [·, kv heads, d] keys whose heads, size and type the store is to have.
            value: [·, kv heads, d] likewise for values.
        """
        before = self._stores.get(layer)
        if before is not None and before[0].shape[2] == self._columns:
            return before
        moved = self._with_columns(key), self._with_columns(value)
        for old, new in zip(before or (None, None), moved, strict=True):
            kept = 0 if old is None else min(old.shape[2], self._columns)
            # Zeros, not uninitialised: a hidden value counts 0 times, and 0 × NaN is NaN.
            new[:, :, kept:] = 0
            if old is not None:
                new[:, :, :kept] = old[:, :, :kept]
                self._spare.append(old)
        self._stores[layer] = moved
        return moved

    def _with_columns(self, like: Tensor) -> Tensor:
        """Return an uninitialised store of `_columns` columns for keys or values [·, heads, d].

        It takes the memory of a store that was moved, if there is one, because a CPU would get new
        memory from the system page by page, which takes longer than the copy. There is room for
        the longest text. Memory that nothing was written to is not in use.
        """
        heads, size = like.shape[1:]
        shape = self.slots, heads, self._columns, size
        most = self.slots * heads * self.longest * size
        for i, spare in enumerate(self._spare):
            room = spare.untyped_storage().nbytes() // like.itemsize
            if spare.dtype == like.dtype and room >= most:
                whole = self._spare.pop(i)
                break
        else:
            whole = like.new_empty(most)
        strides = heads * self._columns * size, self._columns * size, size, 1
        return whole.as_strided(shape, strides)

    def copy(self, sources: Sequence[int], targets: Sequence[int], columns: int) -> None:
        """Copy the first `columns` columns of slots, which are stored, to other slots."""
        self._ends[targets] = columns
        sent = np.array([sources, targets], dtype=np.int64)
        source, target = self._to_device(sent).unbind()
        for stores in self._stores.values():
            for store in stores:
                store[target, :, :columns] = store[source, :, :columns]

    def put(self, slot: int, keys: Keys) -> int:
        """Store the keys and values of a text's first tokens in a slot; return their number."""
        count = len(next(iter(keys.values()))[0])
        self._need(np.array([slot]), np.array([count]))
        for layer, (key, value) in keys.items():
            key_store, value_store = self._stores_of(layer, key, value)
            key_store[slot, :, :count] = key.transpose(0, 1)
            value_store[slot, :, :count] = value.transpose(0, 1)
        return count

    def compact(self, slots: Sequence[int]) -> None:
        """Keep only these slots, and number them from 0. A slot that is named twice is copied."""
        index = self._to_device(np.array(slots, dtype=np.int64))
        self.slots = len(slots)
        self._ends = self._ends[slots]
        self._spare.clear()
        for layer, (keys, values) in self._stores.items():
            self._stores[layer] = (keys[index], values[index])

    def _to_device(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self.device)
