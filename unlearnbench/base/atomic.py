"""Write files and folders as a whole or not at all.

They are written under another name in the same folder, and then renamed.
"""

import errno
import os
import platform
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

PART = ".part-"
"""Beginning of the names of files and folders that are being written."""


@contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Generator[Path, None, None]:
    """Write a file that replaces `path` at the end of the context.

    Missing folders are made. After an error, `path` is as it was.

    Args:
        path: The file.
        durable: Whether the file has to survive a power cut. A rename alone does not ensure that.

    Yields:
        A path in the same folder and with the same suffix, to write to.
    """
    part = path.with_name(f"{PART}{uuid4().hex[:8]}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        if durable:
            fsync(part)
        part.replace(path)
        if durable:
            fsync(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text as UTF-8, so that a reader never sees half of it.

    Args:
        path: The file, which is replaced.
        text: Its content.
        durable: Whether the file has to survive a power cut.
    """
    with atomic_path(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def atomic_folder(path: Path) -> Generator[Path, None, None]:
    """Write a folder that is renamed to `path` at the end of the context.

    If another process made `path` meanwhile, that folder stays and the new one is deleted. If the
    new folder is removed inside the context, nothing is renamed.

    Yields:
        A new folder beside `path`. Its name begins with `PART`, by which leftovers of killed
        processes are found, and states host and process.
    """
    part = path.with_name(f"{PART}{platform.node()}-{os.getpid()}-{uuid4().hex[:8]}")
    try:
        part.mkdir(parents=True)
        yield part
        if part.exists():
            fsync(part)
            try:
                part.rename(path)
            except OSError as error:
                was_made_meanwhile = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
                if not was_made_meanwhile:
                    raise
            fsync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fsync(path: Path) -> None:
    """Force a file, or the names in a folder, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
