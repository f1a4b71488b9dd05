"""Sizes of what attention is given, rounded up where a new one costs something.

On a GPU each new shape is a new size of memory blocks, and for some kernels a plan to be made.
Texts that grow by a token would have a new one at every step. What is added is hidden.
"""

from __future__ import annotations

_AS_IT_IS = frozenset({"cpu"})
_STEP = 64


def rounded(size: int, device: str) -> int:
    """`size` itself on a CPU; else the next power of two, above 64 the next multiple of 64."""
    if device in _AS_IT_IS:
        return size
    return -(-size // _STEP) * _STEP if size > _STEP else 1 << (size - 1).bit_length()
