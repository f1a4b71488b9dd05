"""Parts shared by the readers of evaluation logs: the JSON object, the values of columns."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.files.bounded import (
    QUESTIONS,
    BoundsError,
    decompress,
    parse_json,
    read_bytes,
    shortened,
    whole_number,
)


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`, gzipped or not. Raises: EvaluationError with the place."""
    try:
        document = parse_json(decompress(read_bytes(path)))
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
        """Return why `value` is not possible; "" if it is."""
        types = (int,) if self.whole else (int, float)
        # bool is an int to Python, and not a number here.
        if not isinstance(value, types) or isinstance(value, bool):
            kind = "whole numbers" if self.whole else "numbers"
            return f"expected {kind}, got {shortened(value)}"
        if value < self.low or value > self.high:
            return f"{self.words}, got {value}"
        return ""


# −1e-5: a float32 loss of 0 may be rounded to just below it.
LOSS = Quantity("a loss is at least 0", -1e-5)
RECALL = Quantity("a recall lies between 0 and 1", 0.0, 1.0)
SCORE = Quantity("a score lies between 0 and 1", 0.0, 1.0 + 1e-6)
NUMBER = Quantity("", -math.inf)
TOKENS = Quantity("a count of tokens lies between 0 and 10^9", 0, 10**9, whole=True)


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
        if not table or any(whole_number(index) is None for index in table):
            raise self.error(key, "expected {index: value} with indices 0, 1, …")
        if len(table) > QUESTIONS:
            raise self.error(key, f"{len(table)} questions; the bound is {QUESTIONS}")
        # A merged log of several processes may have them in another order.
        return sorted(table, key=int)

    def array(
        self, key: str, column: Sequence[Any], what: Quantity, *, per_answer: bool = False
    ) -> Any:
        """[n], or [n, k] where each question has a value per perturbed answer."""
        if per_answer and not all(
            isinstance(row, list) and len(row) == len(column[0]) > 0 for row in column
        ):
            raise self.error(key, "expected equally many perturbed answers for every question")
        for value in chain.from_iterable(column) if per_answer else column:
            if wrong := what.problem(value):
                raise self.error(key, wrong)
        return np.array(column, dtype=np.int64 if what.whole else np.float64)
