"""Evaluations' files: read whatever they turn out to be, written whole or not at all."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.bounded import (
    BoundsError,
    parse_json,
    read_bytes,
    shortened,
    unpacked,
    whole_number,
)
from unlearnbench.errors import EvaluationError


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
        document = parse_json(unpacked(read_bytes(path)))
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
    except BoundsError as error:
        raise EvaluationError(f"{path}: cannot read the evaluation log: {error}") from error
    if not isinstance(document, dict):
        raise EvaluationError(f"{path}: expected a JSON object, got a {type(document).__name__}")
    return document


@dataclass(frozen=True)
class Quantity:
    """The values that a column of a log can have; NaN is what a collapsed model has."""

    words: str
    low: float
    high: float = math.inf
    whole: bool = False

    def problem(self, value: Any) -> str:
        """Why `value` cannot be one, in words; "" where it can be one."""
        types = (int,) if self.whole else (int, float)
        # bool is an int to Python, not to us.
        if not isinstance(value, types) or isinstance(value, bool):
            kind = "whole numbers" if self.whole else "numbers"
            return f"expected {kind}, got {shortened(value)}"
        if value < self.low or value > self.high:
            return f"{self.words}, got {value}"
        return ""


# −1e-5: a float32 loss of 0 may be rounded to just below it.
LOSS = Quantity("a loss is at least 0", -1e-5)
RECALL = Quantity("a recall lies between 0 and 1", 0.0, 1.0)
TOKENS = Quantity("a count of tokens lies between 0 and 10^9", 0, 10**9, whole=True)


def is_index(text: str) -> bool:
    """True if a key of a log is a question's index."""
    return whole_number(text) is not None
