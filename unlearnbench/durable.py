"""Names and bytes that a power cut does not take."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def rename_new(part: Path, place: Path) -> None:
    """Put the folder where it belongs, unless another process was first."""
    try:
        part.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    flush(place.parent)


def flush(path: Path) -> None:
    """Force a file, or a folder's names, onto the disk: a rename alone survives no power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
