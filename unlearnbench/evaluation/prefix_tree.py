"""The rows of one question as a prefix tree, so that shared prefixes are computed once.

The prompt is common to all rows, and perturbed answers mostly begin like the answer: on TOFU's
forget10 the tree has 42 % fewer tokens than the rows.

A node of the tree is a token after a certain prefix. A row's last token predicts nothing and has no
node: the rows `a b c` and `a d e` have the nodes `a`, `a b` and `a d`. Nodes are numbered row by
row, so the nodes that no earlier row has are a range: the `Branch` of the row. `TreeLayout` packs
trees into one row and lets a token see its ancestors and itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearnbench.api.observations import IntArray
from unlearnbench.models.packed_attention import AttentionKernel
from unlearnbench.models.prompt_shift import prompt_places
from unlearnbench.models.token_row import Row

_GROUP = {"cpu": 8}
"""Branches in one call of the attention kernel, by device.

Few branches need little padding and stay in a CPU's cache. Many keep a GPU busy.
"""
_GROUP_ELSEWHERE = 256
_STEP = 64
"""Sizes above this one are padded to a multiple of it on a GPU."""
_ROOT = -1
"""The parent of a row's first token, which has no node."""


def padded_size(size: int, device: str) -> int:
    """Return the size to which an array of `size` elements is padded.

    On a CPU that is `size` itself. On other devices it is the next power of two, and above 64 the
    next multiple of 64: each new shape allocates memory blocks of a new size and, for some kernels,
    makes a plan, and texts that grow by a token would bring a new shape at every step. Padding is
    masked.
    """
    if device == "cpu":
        return size
    if size > _STEP:
        return -(-size // _STEP) * _STEP
    return 1 << (size - 1).bit_length()


def padded_array(array: IntArray, device: str) -> IntArray:
    """Return an array with its first element repeated at its end, up to its `padded_size`."""
    missing = padded_size(len(array), device) - len(array)
    return np.append(array, np.full(missing, array[0]))


def rows_at(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return rows [*indices.shape, ...] of a tensor [N, ...], as `tensor[indices]` does.

    A CPU copies whole rows here, and is faster than with an index for each of their numbers.
    """
    rows = tensor.index_select(0, indices.flatten())
    return rows.reshape(*indices.shape, *tensor.shape[1:])


@dataclass(frozen=True, eq=False)
class Branch:
    """The tokens of one row that no earlier row has."""

    above: IntArray
    """Nodes of the row's tokens before the branch, in order."""
    begin: int
    end: int
    """The branch's own nodes are range(begin, end)."""
    masked: IntArray
    """Nodes of the row that no token sees."""

    @property
    def width(self) -> int:
        """Number of the branch's own nodes."""
        return self.end - self.begin

    @property
    def depth(self) -> int:
        """Number of the row's tokens up to the end of the branch."""
        return len(self.above) + self.width

    def moved_by(self, offset: int) -> "Branch":
        """Return the branch in a row where the tree's first node has the number `offset`."""
        return Branch(
            self.above + offset, self.begin + offset, self.end + offset, self.masked + offset
        )


@dataclass(frozen=True, eq=False)
class Tree:
    """Distinct rows of one question. Nodes are tokens, numbered row by row."""

    rows: tuple[Row, ...]
    ids: IntArray
    """[n] token ids by node."""
    depths: IntArray
    """[n] position of each token in its rows."""
    paths: tuple[IntArray, ...]
    """For each row, the nodes of its tokens except the last, which predicts nothing."""
    branches: tuple[Branch, ...]
    predicting: IntArray
    """[p] nodes that predict a scored token, ascending."""
    places: tuple[IntArray, ...]
    """For each row and scored token, the index in `predicting` of the node that predicts it."""
    prompt: tuple[int, ...]
    """The question's tokens without an answer."""
    stem: IntArray
    """Nodes of the prompt's tokens, as far as a row begins with them."""


def build_tree(rows: Sequence[Row], prompt: tuple[int, ...] = ()) -> Tree:
    """Merge the rows of a question into a tree. Equal rows count once.

    Args:
        rows: The rows, at least one.
        prompt: The tokens with which the rows begin.
    """
    distinct_rows = tuple(dict.fromkeys(rows))
    node_of: dict[tuple[int, int], int] = {}  # by parent node and token
    ids: list[int] = []
    depths: list[int] = []
    paths: list[IntArray] = []
    branches: list[Branch] = []
    for row in distinct_rows:
        first_new = len(ids)
        nodes: list[int] = []
        parent = _ROOT
        for depth, token in enumerate(row.ids[:-1]):
            node = node_of.setdefault((parent, token), len(ids))
            if node == len(ids):  # no earlier row has it
                ids.append(token)
                depths.append(depth)
            nodes.append(node)
            parent = node
        path = np.array(nodes, dtype=np.int64)
        paths.append(path)
        new_count = len(ids) - first_new
        if new_count:
            above = path[: len(path) - new_count]
            branches.append(Branch(above, first_new, len(ids), path[list(row.masked)]))

    predicting_of_rows = [
        path[row.start - 1 :] for row, path in zip(distinct_rows, paths, strict=True)
    ]
    predicting = np.unique(np.concatenate(predicting_of_rows))
    return Tree(
        rows=distinct_rows,
        ids=np.array(ids, dtype=np.int64),
        depths=np.array(depths, dtype=np.int64),
        paths=tuple(paths),
        branches=tuple(branches),
        predicting=predicting,
        places=tuple(np.searchsorted(predicting, nodes) for nodes in predicting_of_rows),
        prompt=prompt,
        stem=_stem(distinct_rows, paths, prompt),
    )


def _stem(rows: Sequence[Row], paths: Sequence[IntArray], prompt: tuple[int, ...]) -> IntArray:
    """Return the nodes of the prompt's tokens in the row that has most of them."""
    stems = [
        path[list(prompt_places(prompt, row.ids[:-1], row.masked))]
        for row, path in zip(rows, paths, strict=True)
    ]
    return max(stems, key=len)


class _GroupIndices(NamedTuple):
    """What G branches read from a packed row, with w queries and t keys each."""

    queries: IntArray
    """[G, w] nodes of each branch, padded with any node."""
    keys: IntArray
    """[G, t] nodes that the branch's tokens may see, padded with any node."""
    hidden: NDArray[np.bool_]
    """[G, w, t] whether a key is hidden from a query."""


@dataclass(frozen=True, eq=False)
class _Group:
    """Branches that go through the attention kernel together, on the model's device."""

    queries: Tensor
    """[G, w], see `_GroupIndices`."""
    keys: Tensor
    """[G, t]"""
    mask: Tensor
    """[G, 1, w, t] 0 if a query sees a key, and −inf if not."""


class TreeLayout:
    """The layout of trees packed into one row: a token sees its ancestors and itself."""

    def __init__(self, trees: Sequence[Tree], dtype: torch.dtype, device: torch.device) -> None:
        """Prepare the attention of some trees, which are packed one after the other.

        Args:
            trees: The trees.
            dtype: Dtype of queries, keys and values.
            device: Device of the model.
        """
        self.kept: dict[nn.Module, tuple[Tensor, Tensor]] | None = None
        """By layer, the keys and values [N, kv heads, d] of all tokens; None: they are not kept."""
        self._dtype = dtype
        branches: list[Branch] = []
        node_count = 0
        for tree in trees:
            branches += [branch.moved_by(node_count) for branch in tree.branches]
            node_count += len(tree.ids)
        # Branches of similar depths need little padding together.
        branches.sort(key=lambda branch: branch.depth)

        group_size = _GROUP.get(device.type, _GROUP_ELSEWHERE)
        groups: list[_Group] = []
        # The index of each node in the kernel's outputs, which are concatenated over groups.
        output_of_node = np.empty(node_count, dtype=np.int64)
        outputs_before = 0
        for first in range(0, len(branches), group_size):
            members = branches[first : first + group_size]
            indices = _pad(*_indices(members), device.type)
            width = indices.queries.shape[1]
            for row, branch in enumerate(members):
                begin = outputs_before + row * width
                output_of_node[branch.begin : branch.end] = begin + np.arange(branch.width)
            outputs_before += indices.queries.size
            groups.append(_on_device(indices, dtype, device))
        self._groups = groups
        self._outputs = torch.from_numpy(output_of_node).to(device)

    def __call__(
        self, layer: nn.Module, kernel: AttentionKernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Compute the attention of one layer, see `packed_attention.Layout`."""
        # Converted before tokens are repeated: under autocast the kernel would convert each copy.
        query, key, value = (tensor.to(self._dtype) for tensor in (query, key, value))
        if self.kept is not None:
            self.kept[layer] = key, value
        outputs: list[Tensor] = []
        for group in self._groups:
            queries = rows_at(query, group.queries)
            output = kernel(
                queries, rows_at(key, group.keys), rows_at(value, group.keys), group.mask
            )
            outputs.append(output.flatten(0, 1))
        return rows_at(torch.cat(outputs), self._outputs)


def _indices(branches: Sequence[Branch]) -> _GroupIndices:
    """Return the queries and keys of some branches, and which keys are hidden."""
    widths = np.array([branch.width for branch in branches])
    above_counts = np.array([len(branch.above) for branch in branches])
    queries = np.zeros((len(branches), widths.max()), dtype=np.int64)
    keys = np.zeros((len(branches), (above_counts + widths).max()), dtype=np.int64)
    for i, branch in enumerate(branches):
        own = np.arange(branch.begin, branch.end)
        above_count = len(branch.above)
        queries[i, : len(own)] = own
        keys[i, :above_count] = branch.above
        keys[i, above_count : above_count + len(own)] = own
    # The branch's tokens see all tokens above, and each other causally. Queries of padding see
    # what the branch's last token sees.
    index_in_branch = np.minimum(np.arange(queries.shape[1]), widths[:, None] - 1)
    last_seen = index_in_branch + above_counts[:, None]
    hidden = np.arange(keys.shape[1]) > last_seen[:, :, None]
    for i, branch in enumerate(branches):
        hidden[i] |= np.isin(keys[i], branch.masked)
    # A masked first token sees nothing, and the mean of nothing would be NaN.
    hidden[hidden.all(2)] = False
    return _GroupIndices(queries, keys, hidden)


def _pad(
    queries: IntArray, keys: IntArray, hidden: NDArray[np.bool_], device: str
) -> _GroupIndices:
    """Pad to sizes of `padded_size`. A query of padding sees one key, of any token."""
    padding = [(0, padded_size(size, device) - size) for size in hidden.shape]
    if not any(missing for _, missing in padding):
        return _GroupIndices(queries, keys, hidden)
    of_groups, of_queries, of_keys = padding
    group_count, width, _ = hidden.shape
    hidden = np.pad(hidden, padding, constant_values=True)
    hidden[group_count:, :, 0] = False
    hidden[:, width:, 0] = False
    return _GroupIndices(
        np.pad(queries, [of_groups, of_queries]), np.pad(keys, [of_groups, of_keys]), hidden
    )


def _on_device(indices: _GroupIndices, dtype: torch.dtype, device: torch.device) -> _Group:
    mask = torch.zeros(indices.hidden.shape, dtype=dtype, device=device)
    mask.masked_fill_(torch.from_numpy(indices.hidden).to(device), float("-inf"))
    return _Group(
        torch.from_numpy(indices.queries).to(device),
        torch.from_numpy(indices.keys).to(device),
        mask.unsqueeze(1),
    )
