"""Batches of rows as padded tensors, and copies of tensors on a device."""

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
    """[B, T] bool: whether the next token is scored."""
    labels: Tensor
    """[N] ids of the scored tokens, row by row."""
    rows: Tensor
    """[N] row of each scored token."""


def collate(rows: Sequence[Row], pad: int, device: torch.device) -> TokenBatch:
    """Pad rows on the right.

    Args:
        rows: At least one row.
        pad: Id of the padding.
        device: Where the tensors are wanted.
    """
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
    row_of_scored = torch.arange(len(rows)).repeat_interleave(counts)
    return TokenBatch(
        ids.to(device),
        attention.to(device),
        predicts.to(device),
        labels.to(device),
        row_of_scored.to(device),
    )


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy CPU tensors to `device`. A GPU copies pinned memory while the host goes on."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]


def fast_batch_tokens(device: torch.device) -> int:
    """Return a number of tokens per batch that is fast on a device.

    The number is small on a CPU, whose cache matters more than large matrix products.
    """
    return 2048 if device.type == "cpu" else 16384


def token_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield batches of texts of similar lengths, the longest texts first.

    Args:
        lengths: Number of tokens of each text.
        budget: Largest number of tokens of a batch, including padding. A batch of a single text
            may have more.

    Yields:
        Indices into `lengths`.
    """
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batch: list[int] = []
    for index in longest_first:
        # All texts of a batch are padded to the length of its first one.
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
