"""One process of a machine at a time; the kernel drops a lock with its holder, come what may."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from unlearnbench.errors import OutputError


def flock(handle: int, how: int, folder: Path) -> None:
    """Take the kernel's lock on an open file in `folder`.

    Raises: BlockingIOError where another process has it and `how` has LOCK_NB, OutputError where
    the file system has no locks, as Lustre by default.
    """
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        raise
    except OSError as error:
        raise OutputError(
            f"{folder}: its file system has no locks ({error.strerror}), which keep two commands "
            "apart; mount it with them (Lustre: -o flock), or name a folder on another one"
        ) from error


@contextmanager
def alone(place: Path, purpose: str) -> Generator[None, None, None]:
    """Lock `place` for one purpose, after the process that holds it.

    Raises: OutputError where the file system has no locks.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(place.parent / f".{place.name}.{purpose}", os.O_RDWR | os.O_CREAT)
    try:
        flock(handle, fcntl.LOCK_EX, place.parent)
        yield
    finally:
        os.close(handle)
