"""Batches spread over the processes of a group; without a group all work is done here.

A batch that does not depend on the number of processes has the same result to the last bit, in
whichever process it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import distributed

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def processes() -> int:
    """How many processes share the work."""
    grouped = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if grouped else 1


def spread(batches: Sequence[Batch], work: Callable[[Batch], Result]) -> list[Result]:
    """`work` on every batch, each in one process; in every process all results, in order."""
    size = processes()
    if size == 1:
        return [work(batch) for batch in batches]
    rank = distributed.get_rank()
    own = {i: work(batches[i]) for i in range(rank, len(batches), size)}
    parts: list[dict[int, Result]] = [{} for _ in range(size)]
    distributed.all_gather_object(parts, own)
    found = {i: result for part in parts for i, result in part.items()}
    return [found[i] for i in range(len(batches))]
