"""Folders for Unix sockets, whose paths must be short.

The path of a socket may have 107 bytes. Ray and multiprocessing put their sockets below the
temporary folder. Batch systems such as Slurm often set TMPDIR to a folder of the job, whose path
leaves too few bytes for the names below it. A folder such as `/tmp` is used then.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from unlearnbench.base.errors import UnlearnbenchError

MOST_BYTES = 107
"""Most bytes of the path of a Unix socket on Linux, without the zero byte at its end."""
RAY_PART = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path that Ray adds to the temporary folder, with the largest process id of Linux."""
PYTHON_PART = "/pymp-12345678/listener-12345678"
"""The path that multiprocessing adds to it."""
SHORT_FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders to use if the temporary folder is too long, in order of preference."""
_RAY_VARIABLE = "RAY_TMPDIR"
"""Environment variable of Ray's temporary folder."""


def short_folder(own_part: str, variable: str = "TMPDIR") -> str | None:
    """Choose a folder for sockets.

    Args:
        own_part: Path that the owner of a socket adds to the folder.
        variable: Environment variable that names the folder. A folder in TMPDIR is replaced if it
            is too long, because a batch system may have set it. A folder in RAY_TMPDIR is never
            replaced, because the user has chosen it.

    Returns:
        A short folder, or None if the temporary folder is short enough.

    Raises:
        UnlearnbenchError: If no short folder can be written to, or the user's is too long.
    """
    chosen = os.environ.get(variable)
    parent = chosen or tempfile.gettempdir()
    length = len(os.fsencode(parent.rstrip("/")))
    most = MOST_BYTES - len(own_part)
    if length <= most:
        return None
    may_be_replaced = variable == "TMPDIR" or not chosen
    if may_be_replaced:
        for folder in SHORT_FOLDERS:
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    named = variable if chosen else "TMPDIR"
    raise UnlearnbenchError(
        f"{named}: the path {parent} has {length} bytes, and sockets need a folder whose path has "
        f"at most {most}; set {variable} to a short folder on this machine that you may write to"
    )


@contextmanager
def short_ray_sockets() -> Generator[None, None, None]:
    """Give a Ray that is started inside the context a short temporary folder.

    If a folder is made for it, the folder is deleted at the end.

    Raises:
        UnlearnbenchError: See `short_folder`.
    """
    parent = short_folder(RAY_PART, _RAY_VARIABLE)
    if parent is None:
        yield
        return
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent)
    os.environ[_RAY_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[_RAY_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def short_process_sockets() -> Generator[None, None, None]:
    """Give a server of multiprocessing that is started inside the context a short folder.

    Raises:
        UnlearnbenchError: See `short_folder`.
    """
    before = tempfile.tempdir
    tempfile.tempdir = short_folder(PYTHON_PART) or before
    try:
        yield
    finally:
        tempfile.tempdir = before
