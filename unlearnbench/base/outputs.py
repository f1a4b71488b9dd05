"""Check the places that a command writes to before any work, and write them as a whole.

A place is refused if nothing can be written there.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unlearnbench.base.atomic import atomic_path
from unlearnbench.base.errors import OutputError

SCHEMES = ("file", "local", "memory", "s3", "s3a", "gs", "gcs")
"""Schemes that an address of `storage` may have, by fsspec's names. A path has none."""


def check_file(path: str | Path, subject: str, suffixes: Sequence[str] = ()) -> None:
    """Check that a file can be written.

    Args:
        path: Path of the file.
        subject: What is written, for the message: `the plan`.
        suffixes: Suffixes that the name may have. Empty for any.

    Raises:
        OutputError: If the file cannot be written.
    """
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise _refused(path, subject, f"its name must end in {' or '.join(suffixes)}")
    # A device such as /dev/null would be replaced by a file, and a folder cannot be replaced.
    if path.exists() and not path.is_file():
        raise _refused(path, subject, "a folder" if path.is_dir() else "not a regular file")
    check_folder(path.parent, subject, path)


def check_folder(path: str | Path, subject: str, shown: Path | None = None) -> None:
    """Check that a folder can be made, and written into.

    Args:
        path: Path of the folder.
        subject: What is written, for the message.
        shown: Path that the message names. None for `path`.

    Raises:
        OutputError: If the folder cannot be made or written into.
    """
    path = Path(path)
    nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    if not nearest.is_dir():
        raise _refused(shown or path, subject, f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise _refused(shown or path, subject, f"no permission to write into {nearest}")


def check_storage(url: str) -> None:
    """Check that a storage on this machine can be written. Servers are not asked.

    Raises:
        OutputError: If `url` is a path that cannot be written.
    """
    scheme, is_url, rest = url.partition("://")
    if not is_url or scheme in ("file", "local"):
        check_folder(rest if is_url else url, "storage")


@contextmanager
def writing(path: Path, subject: str, fix: str = "") -> Generator[Path, None, None]:
    """Write a file that replaces `path` at the end of the context. Its folder is made.

    Args:
        path: Path of the file.
        subject: What is written, for the message.
        fix: Advice at the end of the message.

    Yields:
        A path in the same folder, to write to.

    Raises:
        OutputError: If the file cannot be written. The old file stays as it was.
    """
    try:
        with atomic_path(path) as part:
            yield part
    except OSError as error:
        reason = error.strerror or str(error)
        text = f"{reason}; {fix}" if fix else reason
        raise _refused(path, subject, text) from error


def write_file(path: Path, text: str, subject: str, fix: str = "") -> None:
    """Write a text as a file, so that a reader never sees half of it, see `writing`."""
    with writing(path, subject, fix) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _refused(path: str | Path, subject: str, reason: str) -> OutputError:
    return OutputError(f"{path}: cannot write {subject}: {reason}")
