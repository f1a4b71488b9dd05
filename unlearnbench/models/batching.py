"""Batches: rows as tensors, padded or packed, and their copies on a device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unlearnbench.models.encoding import Row

IntArray = NDArray[np.int64]
_ALIGNED = 16
"""Bytes."""


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """B rows, padded on the right to T tokens."""

    ids: Tensor
    """[B, T]"""
    attention: Tensor
    """[B, T] 1 for tokens, 0 for padding and masked tokens."""
    predicts: Tensor
    """[B, T] bool: the next token is scored."""
    labels: Tensor
    """[N] scored tokens, row by row."""
    rows: Tensor
    """[N] row of each scored token."""


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """B concatenated rows, N tokens in all, without padding; on the CPU."""

    ids: Tensor
    """[1, N]"""
    positions: Tensor
    """[1, N] position of each token in its row, from 0."""
    lengths: IntArray
    """[B]"""
    predicting: Tensor
    """Indices of the tokens whose next token is scored."""
    labels: Tensor
    rows: Tensor


def collate(rows: Sequence[Row], pad: int, device: torch.device) -> TokenBatch:
    """Pad `rows` on the right."""
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.long)
    predicts = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        length = len(row.ids)
        ids[i, :length] = torch.tensor(row.ids)
        attention[i, :length] = 1
        attention[i, list(row.masked)] = 0
        predicts[i, row.start - 1 : length - 1] = True  # the token at t is predicted at t − 1
    labels = torch.tensor([token for row in rows for token in row.ids[row.start :]]).long()
    counts = torch.tensor([row.scored for row in rows])
    of = torch.arange(len(rows)).repeat_interleave(counts)
    return TokenBatch(*(t.to(device) for t in (ids, attention, predicts, labels, of)))


def pack(rows: Sequence[Row]) -> PackedBatch:
    """Concatenate `rows`."""
    lengths = np.array([len(row.ids) for row in rows])
    counts = np.array([row.scored for row in rows])
    ids = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, lengths.sum())
    begins = np.cumsum(lengths) - lengths
    positions = _counted(np.zeros_like(lengths), lengths)
    # The token at t is predicted at t − 1.
    predicting = _counted(begins + np.array([row.start - 1 for row in rows]), counts)
    of = np.repeat(np.arange(len(rows)), counts)
    tensors = (torch.from_numpy(array) for array in (predicting, ids[predicting + 1], of))
    whole = (torch.from_numpy(ids).unsqueeze(0), torch.from_numpy(positions).unsqueeze(0))
    return PackedBatch(*whole, lengths, *tensors)


def _counted(begins: IntArray, counts: IntArray) -> IntArray:
    """Concatenate the ranges that begin at `begins` and have `counts` numbers."""
    ends = np.cumsum(counts)
    return np.repeat(begins - (ends - counts), counts) + np.arange(ends[-1])


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy CPU tensors to `device`: to a GPU in one copy, for which the host does not wait."""
    if device.type == "cpu":
        return [*tensors]
    # Each begins at an address that is aligned for any type.
    sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
    begins = [0, *accumulate(sizes)]
    # A GPU copies pinned memory without the host.
    buffer = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")

    def part(whole: Tensor, tensor: Tensor, begin: int) -> Tensor:
        return whole[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    for tensor, begin in zip(tensors, begins, strict=False):
        part(buffer, tensor, begin).copy_(tensor)
    present = buffer.to(device, non_blocking=True)
    return [part(present, *placed) for placed in zip(tensors, begins, strict=False)]


def fast_batch_tokens(device: torch.device) -> int:
    """Default tokens of a batch, a fast size on `device`.

    Small on a CPU, whose cache matters more than large matrix products.
    """
    return 2048 if device.type == "cpu" else 16384


def token_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of similar length, longest first, each of ≤ `budget` padded tokens."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
