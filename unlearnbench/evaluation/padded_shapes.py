"""Padded sizes of attention's inputs, so that GPUs meet few different shapes.

On a GPU each new shape allocates memory blocks of a new size and, for some kernels, makes a plan;
texts that grow by a token would bring one at every step. Padding is masked.
"""

from __future__ import annotations

_UNPADDED = frozenset({"cpu"})
_STEP = 64


def padded_size(size: int, device: str) -> int:
    """`size` itself on a CPU; else the next power of two, above 64 the next multiple of 64."""
    if device in _UNPADDED:
        return size
    return -(-size // _STEP) * _STEP if size > _STEP else 1 << (size - 1).bit_length()
