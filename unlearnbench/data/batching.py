"""Rows as padded tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearnbench.data.encoding import Row


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """B rows, padded on the right to T tokens."""

    ids: Tensor
    """[B, T]"""
    attention: Tensor
    """[B, T] 1 for tokens, 0 for padding."""
    predicts: Tensor
    """[B, T] bool: the next token is scored. The one place where the shift is made."""
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
        # The token at t is predicted at t − 1.
        predicts[i, row.start - 1 : length - 1] = True
    labels = [token for row in rows for token in row.ids[row.start :]]
    counts = predicts.sum(dim=1)
    return TokenBatch(
        ids.to(device),
        attention.to(device),
        predicts.to(device),
        torch.tensor(labels, dtype=torch.long, device=device),
        torch.arange(len(rows)).repeat_interleave(counts).to(device),
    )


def fast_batch_tokens(device: torch.device) -> int:
    """Tokens that go through a model at once, where nobody has said: what is fast on `device`.

    Few on a CPU: what stays in its cache is worth more than larger matrix products.
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
