"""Places that a command writes to: checked before any work, written whole or not at all.

A place is refused if nothing can be written there.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unlearnbench.base.atomic import atomic_path
from unlearnbench.base.errors import OutputError

SCHEMES = ("file", "local", "memory", "s3", "s3a", "gs", "gcs")
"""Schemes of `storage`, by fsspec's names; a path has none."""


def check_file(path: str | Path, subject: str, suffixes: Sequence[str] = ()) -> None:
    """Raise OutputError where no file can be written at `path`."""
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise _refused(path, subject, f"its name must end in {' or '.join(suffixes)}")
    if path.exists() and not path.is_file():  # a device would be replaced, and a folder cannot be
        raise _refused(path, subject, "a folder" if path.is_dir() else "not a regular file")
    check_folder(path.parent, subject, path)


def check_folder(path: str | Path, subject: str, shown: Path | None = None) -> None:
    """Raise OutputError where no folder can be made, or written into."""
    path = Path(path)
    nearest = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
    if not nearest.is_dir():
        raise _refused(shown or path, subject, f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise _refused(shown or path, subject, f"no permission to write into {nearest}")


def check_storage(url: str) -> None:
    """Raise OutputError where `url` is a path that cannot be written; asks no server."""
    scheme, is_url, rest = url.partition("://")
    if not is_url or scheme in ("file", "local"):
        check_folder(rest if is_url else url, "storage")


@contextmanager
def writing(path: Path, subject: str, fix: str = "") -> Generator[Path, None, None]:
    """Yield a path beside `path` to write to, which replaces it at the end; makes its folder.

    Raises: OutputError with `fix` where that cannot be done; the old file stays as it was.
    """
    try:
        with atomic_path(path) as part:
            yield part
    except OSError as error:
        reason = error.strerror or str(error)
        raise _refused(path, subject, "; ".join(filter(None, [reason, fix]))) from error


def write_file(path: Path, text: str, subject: str, fix: str = "") -> None:
    """Replace `path` by `text` at once, so that a reader never sees half of it; see `writing`."""
    with writing(path, subject, fix) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _refused(path: str | Path, subject: str, reason: str) -> OutputError:
    return OutputError(f"{path}: cannot write {subject}: {reason}")
