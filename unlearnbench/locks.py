"""One process of a machine at a time; the kernel drops a lock with its holder, come what may."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(place: Path, purpose: str) -> Generator[None, None, None]:
    """Wait for whoever works at `place` for the same purpose, then hold it for this process."""
    place.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(place.parent / f".{place.name}.{purpose}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
