"""Parts shared by the readers of evaluation logs: the JSON object, the values of columns."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.errors import EvaluationError


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`, gzipped or not. Raises: EvaluationError with the place."""
    try:
        content = path.read_bytes()
        is_gzip = content.startswith(b"\x1f\x8b")
        document = json.loads(gzip.decompress(content) if is_gzip else content)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise EvaluationError(
            f"{path}: cannot read the evaluation log: {reason}; copy or write it again"
        ) from error
    if not isinstance(document, dict):
        raise EvaluationError(f"{path}: expected a JSON object, got a {type(document).__name__}")
    return document


class LogReader:
    """Reads the tables of a log, by question; every error names the place."""

    def __init__(self, place: str, kind: str) -> None:
        """`kind`: whose log it is."""
        self.place, self.kind = place, kind

    def error(self, key: str, message: str) -> EvaluationError:
        return EvaluationError(
            f"{self.place}{key}: {message}; the log is incomplete or not {self.kind}: "
            "evaluate again"
        )

    def indices(self, key: str, table: Mapping[str, Any]) -> list[str]:
        """The questions' indices in `table`, in order."""
        if not table or not all(index.isdecimal() for index in table):
            raise self.error(key, "expected {index: value} with indices 0, 1, …")
        # A merged log of several processes may have them in another order.
        return sorted(table, key=int)

    def array(
        self, key: str, column: Sequence[Any], *, whole: bool = False, per_answer: bool = False
    ) -> Any:
        """[n] numbers, or [n, k] where each question has one per perturbed answer."""
        unequal = "expected equally many perturbed answers for every question"
        try:
            values = np.array(column)
        except ValueError:  # lists of several lengths
            raise self.error(key, unequal) from None
        if per_answer and (values.ndim != 2 or not values.size):
            raise self.error(key, unequal)
        if values.dtype.kind not in ("iu" if whole else "iuf") or values.ndim != 1 + per_answer:
            raise self.error(key, f"expected {'whole ' * whole}numbers")
        return values.astype(np.int64 if whole else np.float64)
