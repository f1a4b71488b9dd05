"""Batches spread over the processes of a group; without a group all work is done here.

A batch that does not depend on the number of processes has the same result to the last bit, in
whichever process it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from unlearnbench.group import of_all, rank, world
from unlearnbench.shortage import everywhere

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def spread(batches: Sequence[Batch], work: Callable[[Batch], Result]) -> list[Result]:
    """`work` on every batch, each in one process; in every process all results, in order.

    Raises: OutOfMemoryError in all processes where memory runs out in one.
    """
    mine = range(rank(), len(batches), world())
    own = everywhere(lambda: {i: work(batches[i]) for i in mine})
    found = {i: result for part in of_all(own) for i, result in part.items()}
    return [found[i] for i in range(len(batches))]
