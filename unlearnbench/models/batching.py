"""Batches: rows as padded tensors, and copies of tensors on a device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearnbench.models.token_row import Row


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


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy CPU tensors to `device`; a GPU copies pinned memory while the host goes on."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]


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
