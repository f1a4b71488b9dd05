"""Measure the peak memory of a piece of work.

On a GPU torch counts what it has allocated. On a CPU it is the kernel's own high-water mark of
resident memory (VmHWM), reset when the work begins, so that no peak between two samples is missed.
Freed memory that the allocator keeps hides a part of it.
"""

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def memory_bytes(key: str) -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (the most so far) of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> bool:
    """Reset `VmHWM`; returns whether this system can."""
    # Freed memory that the allocator keeps would hide what is allocated next. glibc only.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        _RESET.write_text("5")  # VmHWM becomes VmRSS
    except OSError:
        return False
    return True


class Peak:
    """Peak memory since this object was made."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self._begin: int | None = None
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        elif reset_peak():
            self._begin = memory_bytes("VmRSS")

    def to_json(self) -> dict[str, Any]:
        """The peak in MiB and what it measures; None where the system has no measure."""
        if self.on_gpu:
            result: int | None = torch.cuda.max_memory_allocated()
            of = "allocated on the GPU"
        else:
            result = None if self._begin is None else memory_bytes("VmHWM") - self._begin
            of = "resident, above the run's start"
        mib = None if result is None else round(result / 2**20)
        return {"peak_memory_mib": mib, "peak_memory_of": of}
