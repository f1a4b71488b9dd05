"""Rows from outside a run's benchmark, that an attack trains on: another benchmark's, or a file's.

A file has passages of text between blank lines; or, by its ending `.jsonl`, an object on each line,
with `question` and `answer`, or with `text` alone.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.base.errors import DataError, shortened
from unlearnbench.models.rows_loading import load_benchmark

JSON_LINES = ".jsonl"
_FRACTIONS = (0.1, 0.05, 0.01, 0.25, 0.5)
"""Splits of a benchmark, of which one is loaded with all of its rows."""


def other_rows(source: Benchmark | str) -> tuple[Question, ...]:
    """All training rows of a benchmark, or the rows of the file with that path.

    Raises: DataError for a file or row that is missing or malformed, or a benchmark without rows.
    """
    if isinstance(source, Benchmark):
        return _benchmark_rows(source)
    try:
        path = Path(source).expanduser()
        rows = _json_lines(path) if path.suffix == JSON_LINES else _passages(path)
        result = tuple(rows)
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror})") from error
    if not result:
        raise DataError(f"{source}: no rows; write passages with a blank line between them")
    return result


def _benchmark_rows(benchmark: Benchmark) -> tuple[Question, ...]:
    splits = benchmark.splits or _FRACTIONS
    key = next((split for split in splits if not benchmark.problem_with(split)), None)
    if key is None:
        raise DataError(f"benchmark {benchmark.source!r} has none of the splits {splits}")
    dataset = load_benchmark(benchmark, [key])
    return dataset.full or (*dataset.splits[key].retain, *dataset.splits[key].forget)


def _passages(path: Path) -> Iterator[Question]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 (byte {error.start + 1})") from error
    for number, passage in enumerate(re.split(r"\r?\n\s*\n", text), 1):
        if passage.strip():
            yield _passage(passage.strip(), f"{path}, passage {number}")


def _json_lines(path: Path) -> Iterator[Question]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        target = f"{path}:{number}"
        try:
            columns = json.loads(line)
        except ValueError as error:
            raise DataError(f"{target}: not a JSON object on one line ({error})") from error
        keys = set(columns) if isinstance(columns, dict) else None
        if keys not in ({"question", "answer"}, {"text"}):
            raise DataError(
                f"{target}: expected an object with `question` and `answer`, or with `text` alone, "
                f"got {'the keys ' + ', '.join(sorted(keys)) if keys else shortened(columns)}"
            )
        texts = {key: _text(target, key, value) for key, value in columns.items()}
        if "text" in texts:
            yield _passage(texts["text"], target)
        else:
            yield Question(texts["question"], texts["answer"], place=target)


def _passage(text: str, location: str) -> Question:
    return Question("", text, format="text", place=location)


def _text(location: str, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{location}: {key!r} must be a text that is not blank, got {value!r:.80}")
    return value
