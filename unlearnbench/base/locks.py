"""File locks of the kernel, which releases a lock when its process ends, however it ends."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from unlearnbench.base.errors import OutputError


def flock(handle: int, operation: int, folder: Path) -> None:
    """Lock an open file.

    Args:
        handle: File descriptor.
        operation: Flags of `fcntl.flock`.
        folder: Folder of the file, for the message.

    Raises:
        BlockingIOError: If another process has the lock, and `operation` has LOCK_NB.
        OutputError: If the file system has no locks. Lustre has none by default.
    """
    try:
        fcntl.flock(handle, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise OutputError(
            f"{folder}: its file system has no locks ({error.strerror}), which keep two commands "
            "apart; mount it with them (Lustre: -o flock), or name a folder on another one"
        ) from error


@contextmanager
def exclusive_lock(path: Path) -> Generator[None, None, None]:
    """Wait for the lock on a file, and hold it inside the context.

    Args:
        path: The file, which is made if it is missing. It stays after the lock is released.

    Raises:
        OutputError: If the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        flock(handle, fcntl.LOCK_EX, path.parent)
        yield
    finally:
        os.close(handle)
