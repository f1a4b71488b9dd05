"""Batches spread over the processes of a group, with the results of one process.

Batches are formed before they are spread, so each is computed as a single process would compute it
and the results are the same to the last bit. Without a process group all work is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import distributed

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def spread(batches: Sequence[Batch], work: Callable[[Batch], Result]) -> list[Result]:
    """`work` on every batch, each in one process; in every process all results, in order."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [work(batch) for batch in batches]
    rank, size = distributed.get_rank(), distributed.get_world_size()
    own = {i: work(batches[i]) for i in range(rank, len(batches), size)}
    parts: list[dict[int, Result]] = [{} for _ in range(size)]
    distributed.all_gather_object(parts, own)
    found = {i: result for part in parts for i, result in part.items()}
    return [found[i] for i in range(len(batches))]
