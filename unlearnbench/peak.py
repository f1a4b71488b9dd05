"""How much memory a piece of work has taken at most.

On a GPU torch counts what it has allocated. On a CPU it is the kernel's own high-water mark of
resident memory (VmHWM), set back when the work begins, so that no peak between two samples is
missed; an allocator that keeps what it was given back hides a part of it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def resident(key: str) -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (the most so far) of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def set_back() -> bool:
    """Begin to measure `VmHWM` anew; whether this system can."""
    # Freed memory that the allocator keeps would hide what is allocated next. glibc only.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        _RESET.write_text("5")  # VmHWM becomes VmRSS
    except OSError:
        return False
    return True


class Peak:
    """The most memory of the work that begins here."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self._begin: int | None = None
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        elif set_back():
            self._begin = resident("VmRSS")

    def to_json(self) -> dict[str, Any]:
        """In MiB, and of what; None where this system does not say."""
        if self.on_gpu:
            found: int | None = torch.cuda.max_memory_allocated()
            of = "allocated on the GPU"
        else:
            found = None if self._begin is None else resident("VmHWM") - self._begin
            of = "resident, above the run's start"
        mib = None if found is None else round(found / 2**20)
        return {"peak_memory_mib": mib, "peak_memory_of": of}
