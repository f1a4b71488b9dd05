"""Time that counts: read when the device has done what it was given."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds on a clock that never goes back, after all work on `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
