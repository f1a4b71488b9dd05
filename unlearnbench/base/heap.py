"""Control when the C library glibc returns freed memory to the system.

A batch allocates and frees the same few tensors in every layer. With its own settings, glibc
returns much of this memory at once. The next tensor then gets new pages, and the system first fills
each of them with zeros. An evaluation of TOFU's forget10 on two cores met 900,000 new pages. Now it
meets 300,000, and takes about 3 % less time.
"""

import ctypes
import os
from contextlib import suppress

_MIB = 2**20
_LARGE_PROCESS = 1024 * _MIB
"""Bytes of a process from which on `trim_heap` returns freed memory."""
_SETTINGS = {-1: 64 * _MIB, -3: 32 * _MIB}
"""Values of `mallopt`, by its parameters in `malloc.h`.

- -1, `M_TRIM_THRESHOLD`: bytes that may be free at the end of the heap before they are returned.
- -3, `M_MMAP_THRESHOLD`: from this size on, an allocation has pages of its own, which are returned
  when it is freed. So weights of large models are still returned at once.

glibc itself raises both while a process runs, at most to these values: the second to the size of
the largest tensor that was freed, and the first to twice this size.
"""
_CHOSEN_BY_USER = ("GLIBC_TUNABLES", "MALLOC_")
"""Beginnings of environment variables that set the same."""


def keep_freed_memory() -> None:
    """Let this process keep more of the memory that it frees, for what it allocates next.

    Until `trim_heap`, a thread may keep all allocations below 32 MiB that it has freed.

    Call it only in processes of our own, because it affects all code of the process. It changes
    nothing if the user has set `MALLOC_…` or `GLIBC_TUNABLES`.
    """
    if any(name.startswith(_CHOSEN_BY_USER) for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # The process may use another C library.
        library = ctypes.CDLL("libc.so.6")
        for parameter, value in _SETTINGS.items():
            library.mallopt(parameter, value)


def trim_heap() -> None:
    """Return freed memory to the system, if the process is large.

    glibc keeps freed memory in pieces that may be too small for what is needed next.
    """
    import psutil

    if psutil.Process().memory_info().rss > _LARGE_PROCESS:
        with suppress(OSError, AttributeError):  # The process may use another C library.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
