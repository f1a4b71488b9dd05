"""Evaluations' files: read whatever they turn out to be, written whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unlearnbench.errors import EvaluationError

_GZIP_MAGIC = b"\x1f\x8b"


def check_place(path: Path, what: str) -> None:
    """Make the folder of `path`; EvaluationError where `what` cannot be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(path, what, error.strerror or str(error)) from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise _not_written(path, what, "a folder" if path.is_dir() else "no permission")


def _not_written(path: Path, what: str, reason: str) -> EvaluationError:
    return EvaluationError(f"{path}: cannot write {what}: {reason}")


@contextmanager
def writing(path: Path, what: str) -> Generator[Path, None, None]:
    """Yields a place beside `path` to write to, which becomes `path` at the end of the `with`.

    Missing folders are made. An OSError is raised as EvaluationError: cannot write `what`.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise _not_written(path, what, error.strerror or str(error)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, gzipped or not; EvaluationError says what is wrong and where."""
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
        document = json.loads(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise EvaluationError(
            f"{path}: the gzip file is damaged or cut short ({error}); copy or write it again"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise EvaluationError(f"{path}: cannot read the evaluation log: {reason}") from error
    except json.JSONDecodeError as error:
        raise EvaluationError(
            f"{path}:{error.lineno}: not JSON, or cut short ({error.msg} at column {error.colno}); "
            "copy or write it again"
        ) from error
    except UnicodeDecodeError as error:
        raise EvaluationError(
            f"{path}: neither JSON text nor gzip; give an evaluation log"
        ) from error
    if not isinstance(document, dict):
        raise EvaluationError(f"{path}: expected a JSON object, got a {type(document).__name__}")
    return document
