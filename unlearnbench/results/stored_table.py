"""The table of a sweep as a file: `table.json`, in the sweep's folder.

The file contains all numbers, and for each row a hash of everything that its numbers depend on. A
command that makes the table again takes the rows whose hash is unchanged, and computes the others.
The file may be deleted, because everything in it follows from the records.

    models   a list of values for each record, in the order of `model_fields`
    rows     a list for each evaluation: index in `models`, epoch, variant, key, and a number for
             each entry of `columns`
    counts   how many rows are plain, under attacks, and before attacks, in this order
    schema   the benchmark's columns with label, direction, bounds and set, see `BenchmarkSchema`
    notes    sentences on numbers that could not be computed, or that have moved
    sha256   hash of the document without this entry, always at the end of the file

There may be millions of numbers, so they are lists without names, and the hash is computed from the
text as it is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearnbench.base.hashing import decode_floats, document_hash, json_ready
from unlearnbench.base.outputs import write_file
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.results.moved_numbers import MovedNumbers
from unlearnbench.results.table import Numbers, Table, TableRow

TABLE_FILE = "table.json"
"""Name of the file. It is in the same folder as `results.csv`."""
_FIX = "no record is lost: `unlearnbench report FOLDER` computes the table again"
"""Advice if the file cannot be written."""
_FORMAT = 1
"""Version of the layout. A file of another version is not read."""
_MODEL_FIELDS = (
    "run_id",
    "kind",
    "model",
    "forget_fraction",
    "method",
    "family",
    "setting",
    "learning_rate",
    "seed",
    "status",
    "at_inference",
    "uncounted",
)
"""Fields of `TableRow` that are equal in all rows of a record."""


@dataclass(frozen=True, eq=False)
class StoredTable:
    """The parts of a stored table that `finalize` uses again."""

    by_key: Mapping[str, Numbers] = field(default_factory=dict[str, Numbers])
    """Numbers of rows by their key."""
    by_place: Mapping[tuple[str, int, str], Numbers] = field(
        default_factory=dict[tuple[str, int, str], Numbers]
    )
    """Numbers of rows by record id, epoch and variant."""
    rules_key: str = ""
    """Hash of the rules by which the table was computed."""
    metrics: MetricChoices | None = None
    """Metrics that the configuration named at that time. None if that is unknown."""
    moved: MovedNumbers = field(default_factory=MovedNumbers)
    """Numbers that had moved when the table was computed."""

    def moved_under(self, rules_key: str) -> MovedNumbers:
        """Return the numbers that had moved, or none if the table was computed by other rules."""
        return self.moved if rules_key == self.rules_key else MovedNumbers()


NOTHING_STORED = StoredTable()
"""For a folder without the file."""


def write_table(table: Table, folder: Path) -> None:
    """Store a table in a sweep's folder.

    Raises:
        OutputError: If the file cannot be written.
    """
    write_file(folder / TABLE_FILE, _text_of(table), "the table", _FIX)


def _text_of(table: Table) -> str:
    """Return the content of the file, which ends with the hash of everything before it."""
    rows = (*table.rows, *table.attacked, *table.before)
    columns = list(dict.fromkeys(name for row in rows for name in row.metrics))
    models: list[list[Any]] = []
    index_of_model: dict[str, int] = {}
    numbers_of_rows: list[list[Any]] = []
    for row in rows:
        if row.run_id not in index_of_model:
            index_of_model[row.run_id] = len(models)
            models.append(_model_values(row))
        numbers = [row.metrics.get(name) for name in columns]
        numbers_of_rows.append(
            [index_of_model[row.run_id], row.epoch, row.variant, row.key, *numbers]
        )

    document: dict[str, Any] = json_ready(
        {
            "format": _FORMAT,
            "rules": table.rules_key,
            "metrics": table.metrics,
            "schema": table.schema.to_json(),
            "notes": table.notes,
            "moved": table.moved.to_json(),
            "model_fields": _MODEL_FIELDS,
            "models": models,
            "columns": columns,
            "counts": [len(table.rows), len(table.attacked), len(table.before)],
        },
        lambda number: {"$float": repr(number)},
    )
    # Numbers of a table are finite or None, so these millions of values need no conversion.
    document["rows"] = numbers_of_rows
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    text_without_brace = text[:-1]
    return f"{text_without_brace}{_SEAL}{_hash(text)}{_END}"


def _model_values(row: TableRow) -> list[Any]:
    """Return the values of a row that all rows of its record share, by `_MODEL_FIELDS`."""
    values = {name: getattr(row, name) for name in _MODEL_FIELDS}
    values["setting"] = row.setting.to_json()
    return list(values.values())


_SEAL = ',"sha256":"'
"""Text between the document and its hash."""
_END = '"}\n'
"""Text after the hash."""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_table(folder: Path) -> StoredTable:
    """Read the table that is stored in a sweep's folder.

    Returns:
        `NOTHING_STORED` if the file is missing, damaged or of another version. That is no error,
        because everything in the file can be computed again.
    """
    try:
        text = (folder / TABLE_FILE).read_text(encoding="utf-8")
        document: dict[str, Any] = json.loads(text)
        if not _is_whole(text, document) or document["format"] != _FORMAT:
            return NOTHING_STORED
        return _stored_table(document)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return NOTHING_STORED


def _is_whole(text: str, document: Mapping[str, Any]) -> bool:
    """Whether the hash in the file is that of its content."""
    text_without_brace, seal, _ = text.rpartition(_SEAL)
    # Hashing the text takes a tenth of the time that serialising the document again would take.
    if seal and document["sha256"] == _hash(text_without_brace + "}"):
        return True
    # Another tool may have changed the layout of the file, but not its content.
    return bool(document["sha256"] == document_hash(document))


def _stored_table(document: Mapping[str, Any]) -> StoredTable:
    """Read a table from its JSON document.

    Raises:
        LookupError: If an entry is missing.
        TypeError: If an entry has another type.
        ValueError: If a row has more or fewer values than there are columns.
    """
    columns: list[str] = document["columns"]
    index_of_id = _MODEL_FIELDS.index("run_id")
    record_ids = [model[index_of_id] for model in document["models"]]
    plain_count, attacked_count, _ = document["counts"]
    by_key: dict[str, Numbers] = {}
    by_place: dict[tuple[str, int, str], Numbers] = {}
    for index, row in enumerate(document["rows"]):
        index_of_model, epoch, variant, key, *values = row
        numbers = Numbers(zip(columns, values, strict=True))
        # Rows before attacks come last. They have the same record, epoch and variant as the rows
        # under attacks, and must not replace them.
        if index < plain_count + attacked_count:
            by_place[record_ids[index_of_model], epoch, variant] = numbers
        if key:
            by_key[key] = numbers
    # Settings of metrics may be floats that JSON lacks, stored as `{"$float": "inf"}`.
    metrics = json.loads(json.dumps(document["metrics"]), object_hook=decode_floats)
    return StoredTable(
        by_key,
        by_place,
        document["rules"],
        metrics,
        MovedNumbers.from_json(document["moved"]),
    )
