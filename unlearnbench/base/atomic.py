"""Files and folders written whole or not at all: beside their place, then renamed into it."""

import errno
import os
import platform
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

PART = ".part-"
"""Beginning of the name of what is being written."""


@contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Generator[Path, None, None]:
    """Yield a path beside `path`, with the same suffix, whose file replaces `path` at the end.

    Missing folders are made. After an error, `path` is as it was.

    durable  survive a power cut too, which a rename alone does not
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
    """Replace `path` at once, as UTF-8, so that a reader never sees half of it."""
    with atomic_path(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def atomic_folder(path: Path) -> Generator[Path, None, None]:
    """Yield a new folder beside `path`, which is renamed to it unless another process was first.

    Its name begins with `PART`, host and process, by which leftovers are found. A folder that is
    removed inside the `with` is not renamed.
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
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
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
