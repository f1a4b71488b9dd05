"""The rows of one question as a prefix tree, so that shared prefixes are computed once.

The prompt is common to all rows, and perturbed answers mostly begin like the answer: on TOFU's
forget10 the tree has 42 % fewer tokens than the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearnbench.api.observations import IntArray
from unlearnbench.models.packed_attention import AttentionKernel
from unlearnbench.models.prompt_shift import prompt_places
from unlearnbench.models.token_row import Row

# Branches in one call of the attention kernel: few need little padding and stay in a CPU's cache,
# many keep a GPU busy.
_GROUP = {"cpu": 8}
_GROUP_ELSEWHERE = 256
_STEP = 64


def padded_size(size: int, device: str) -> int:
    """`size` itself on a CPU; else the next power of two, above 64 the next multiple of 64.

    On a GPU each new shape allocates memory blocks of a new size and, for some kernels, makes a
    plan; texts that grow by a token would bring one at every step. Padding is masked.
    """
    if device == "cpu":
        return size
    return -(-size // _STEP) * _STEP if size > _STEP else 1 << (size - 1).bit_length()


def padded_array(array: IntArray, device: str) -> IntArray:
    """`array`, and its first element again and again up to its `padded_size`."""
    return np.append(array, np.full(padded_size(len(array), device) - len(array), array[0]))


@dataclass(frozen=True, eq=False)
class Branch:
    """The tokens of one row that no earlier row has."""

    above: IntArray
    """Nodes of the row's tokens before them, in order."""
    begin: int
    end: int
    """Its own nodes are range(begin, end)."""
    masked: IntArray
    """Nodes of the row that no token sees."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Distinct rows of one question; nodes are tokens, numbered row by row."""

    rows: tuple[Row, ...]
    ids: IntArray
    """[n]"""
    depths: IntArray
    """[n] position of each token in its rows."""
    paths: tuple[IntArray, ...]
    """For each row, the nodes of its tokens but the last, which predicts nothing."""
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
    """Merge rows that begin with `prompt`; duplicates count once."""
    rows = tuple(dict.fromkeys(rows))
    nodes: dict[tuple[int, int], int] = {}
    ids: list[int] = []
    depths: list[int] = []
    paths: list[IntArray] = []
    branches: list[Branch] = []
    for row in rows:
        path: list[int] = []
        begin, parent = len(ids), -1
        for depth, token in enumerate(row.ids[:-1]):
            node = nodes.setdefault((parent, token), len(ids))
            if node == len(ids):
                ids.append(token)
                depths.append(depth)
            path.append(node)
            parent = node
        paths.append(np.array(path, dtype=np.int64))
        if len(ids) > begin:
            shared = len(path) - (len(ids) - begin)
            masked = paths[-1][list(row.masked)]
            branches.append(Branch(paths[-1][:shared], begin, len(ids), masked))
    scored = [path[row.start - 1 :] for row, path in zip(rows, paths, strict=True)]
    predicting = np.unique(np.concatenate(scored))
    return Tree(
        rows,
        np.array(ids, dtype=np.int64),
        np.array(depths, dtype=np.int64),
        tuple(paths),
        tuple(branches),
        predicting,
        tuple(np.searchsorted(predicting, each) for each in scored),
        prompt,
        max((_stem(*pair, prompt) for pair in zip(rows, paths, strict=True)), key=len),
    )


def _stem(row: Row, path: IntArray, prompt: tuple[int, ...]) -> IntArray:
    return path[list(prompt_places(prompt, row.ids[:-1], row.masked))]


@dataclass(frozen=True, eq=False)
class _Group:
    """Branches that go through the attention kernel together."""

    queries: Tensor
    """[G, w] nodes of each branch, padded with any node."""
    keys: Tensor
    """[G, t] nodes that the branch's tokens may see."""
    mask: Tensor
    """[G, 1, w, t] 0 where a query sees a key, else −inf."""


class TreeLayout:
    """The layout of trees packed into one row: a token sees its ancestors and itself."""

    def __init__(self, trees: Sequence[Tree], dtype: torch.dtype, device: torch.device) -> None:
        branches: list[Branch] = []
        offset = 0
        for tree in trees:
            branches += [
                Branch(b.above + offset, b.begin + offset, b.end + offset, b.masked + offset)
                for b in tree.branches
            ]
            offset += len(tree.ids)
        branches.sort(key=lambda b: len(b.above) + b.end - b.begin)
        size = _GROUP.get(device.type, _GROUP_ELSEWHERE)
        self.kept: dict[nn.Module, tuple[Tensor, Tensor]] | None = None
        """By layer, the keys and values [N, kv heads, d] of all tokens; None: they are not kept."""
        self._dtype, self._groups = dtype, list[_Group]()
        order = np.empty(offset, dtype=np.int64)  # of each node in the kernels' outputs
        done = 0
        for i in range(0, len(branches), size):
            group = branches[i : i + size]
            queries, keys, hidden = _pad(*_indices(group), device.type)
            for row, branch in enumerate(group):
                begin = done + row * queries.shape[1]
                order[branch.begin : branch.end] = begin + np.arange(branch.end - branch.begin)
            done += queries.size
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
            mask.masked_fill_(torch.from_numpy(hidden).to(device), float("-inf"))
            self._groups.append(
                _Group(
                    torch.from_numpy(queries).to(device),
                    torch.from_numpy(keys).to(device),
                    mask.unsqueeze(1),
                )
            )
        self._order = torch.from_numpy(order).to(device)

    def __call__(
        self, layer: nn.Module, kernel: AttentionKernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of one layer, see `packed_attention.Layout`."""
        # Convert before tokens are repeated: under autocast the kernel would convert each copy.
        query, key, value = (t.to(self._dtype) for t in (query, key, value))
        if self.kept is not None:
            self.kept[layer] = key, value
        outputs = [
            kernel(query[g.queries], key[g.keys], value[g.keys], g.mask).flatten(0, 1)
            for g in self._groups
        ]
        return torch.cat(outputs)[self._order]


def _pad(
    queries: IntArray, keys: IntArray, hidden: NDArray[np.bool_], device: str
) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Pad to sizes of `padded_size`; a padding query sees one key, of any token."""
    sizes = [(0, padded_size(size, device) - size) for size in hidden.shape]
    if not any(more for _, more in sizes):
        return queries, keys, hidden
    count, width, _ = hidden.shape
    hidden = np.pad(hidden, sizes, constant_values=True)
    hidden[count:, :, 0] = hidden[:, width:, 0] = False
    return np.pad(queries, sizes[:2]), np.pad(keys, [sizes[0], sizes[2]]), hidden


def _indices(group: Sequence[Branch]) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Queries [G, w], keys [G, t], and which keys are hidden from a query [G, w, t]."""
    widths = np.array([b.end - b.begin for b in group])
    above = np.array([len(b.above) for b in group])
    queries = np.zeros((len(group), widths.max()), dtype=np.int64)
    keys = np.zeros((len(group), (above + widths).max()), dtype=np.int64)
    for i, branch in enumerate(group):
        part = np.arange(branch.begin, branch.end)
        queries[i, : len(part)] = part
        keys[i, : len(branch.above)] = branch.above
        keys[i, len(branch.above) : len(branch.above) + len(part)] = part
    # Causal from the branch's first token on; padding queries see what its last token sees.
    last = np.minimum(np.arange(queries.shape[1]), widths[:, None] - 1) + above[:, None]
    hidden = np.arange(keys.shape[1]) > last[:, :, None]
    for i, branch in enumerate(group):
        hidden[i] |= np.isin(keys[i], branch.masked)
    hidden[hidden.all(2)] = False  # a masked first token sees nothing, whose mean would be NaN
    return queries, keys, hidden
