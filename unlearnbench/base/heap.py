"""What becomes of memory that was freed, if the process uses the C library glibc.

A batch allocates and frees the same few tensors in every layer. By default, glibc soon gives freed
memory back to the system. The next tensor then gets new pages, which the system first fills with
zeros, one by one: an evaluation on a CPU met 800,000 of them, and spent 5 % of its time so.
"""

import ctypes
import os
from contextlib import suppress

_MIB = 2**20
_LARGE_PROCESS = 1024 * _MIB
"""Bytes of a process from which on `trim_heap` gives freed memory back."""
_SETTINGS = {
    -1: 256 * _MIB,
    -2: 64 * _MIB,
    -3: 32 * _MIB,
}
"""Values of `mallopt`, by its parameters in `malloc.h`.

- -1, `M_TRIM_THRESHOLD`: bytes that may be free at the end of a heap.
- -2, `M_TOP_PAD`: bytes that a heap grows by beyond what is asked for, and keeps when it shrinks.
- -3, `M_MMAP_THRESHOLD`: from this size on, an allocation has pages of its own, and these are given
  back when it is freed. It is the largest value that glibc itself chooses after a while, so what is
  as large as the weights of a large model is treated as before.
"""
_CHOSEN_BY_USER = ("GLIBC_TUNABLES", "MALLOC_")
"""Beginnings of environment variables with which somebody sets the same."""


def keep_freed_memory() -> None:
    """Let this process keep some of the memory that it frees, for what it allocates next.

    It is for processes of our own. In a notebook, it would also concern what the notebook does. If
    the environment has settings for the heap, they are kept.
    """
    if any(name.startswith(_CHOSEN_BY_USER) for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # The process may use another C library.
        library = ctypes.CDLL("libc.so.6")
        for parameter, value in _SETTINGS.items():
            library.mallopt(parameter, value)


def trim_heap() -> None:
    """Give freed memory back to the system, if the process is large.

    glibc keeps freed memory in pieces that may be too small for what is needed next.
    """
    import psutil

    if psutil.Process().memory_info().rss > _LARGE_PROCESS:
        with suppress(OSError, AttributeError):  # The process may use another C library.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
