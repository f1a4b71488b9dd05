"""The table of a sweep as a file: `table.json`, in the sweep's folder.

It has all numbers, and for each row the hash of everything that they depend on. A command that
makes the table again takes the rows whose hash is still the same, and computes only the others. The
file may be deleted: everything in it follows from the records.

    models   one entry for each record: the values by `_MODEL_FIELDS`
    rows     one for each evaluation: place in `models`, epoch, variant, key, numbers by `columns`
    schema   the benchmark's columns with label, direction, bounds and set; see `BenchmarkSchema`
    notes    sentences on numbers that could not be computed, or that have moved
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
from unlearnbench.results.table import Numbers, Table

TABLE_FILE = "table.json"
"""Name of the file, beside `results.csv`."""
_FIX = "no record is lost: `unlearnbench report FOLDER` computes the table again"
"""Advice if the file cannot be written."""
_FORMAT = 1
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
"""What all rows of one record have in common."""


@dataclass(frozen=True, eq=False)
class StoredTable:
    """What a stored table knows, for `finalize`."""

    by_key: Mapping[str, Numbers] = field(default_factory=dict[str, Numbers])
    """Numbers of a row by its key."""
    by_place: Mapping[tuple[str, int, str], Numbers] = field(
        default_factory=dict[tuple[str, int, str], Numbers]
    )
    """Numbers of a row by record id, epoch and variant."""
    rules_key: str = ""
    """Hash of the rules by which it was computed."""
    metrics: MetricChoices | None = None
    """Metrics that the configuration named then; None if nothing is known of it."""
    moved: MovedNumbers = field(default_factory=MovedNumbers)
    """Numbers that had moved when it was computed."""

    def moved_under(self, rules_key: str) -> MovedNumbers:
        """Return the numbers that had moved when the rules became these; none of other rules."""
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
    rows = (*table.rows, *table.attacked, *table.before)
    columns = [*dict.fromkeys(name for row in rows for name in row.metrics)]
    models: dict[str, list[Any]] = {}
    place_of_model: dict[str, int] = {}
    numbers: list[list[Any]] = []
    for row in rows:
        if row.run_id not in models:
            place_of_model[row.run_id] = len(models)
            of_model = {name: getattr(row, name) for name in _MODEL_FIELDS}
            models[row.run_id] = [*(of_model | {"setting": row.setting.to_json()}).values()]
        metrics = row.metrics
        numbers.append(
            [
                place_of_model[row.run_id],
                row.epoch,
                row.variant,
                row.key,
                *[metrics.get(name) for name in columns],
            ]
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
            "models": [*models.values()],
            "columns": columns,
            "counts": [len(table.rows), len(table.attacked), len(table.before)],
        },
        lambda number: {"$float": repr(number)},
    )
    # The numbers are finite or None, so that these millions of values need no conversion.
    document["rows"] = numbers
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{text[:-1]}{_SEAL}{_hash(text)}{_END}"


_SEAL = ',"sha256":"'
_END = '"}\n'


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_table(folder: Path) -> StoredTable:
    """Read the table that is stored in a sweep's folder; nothing if there is none to read.

    A file that is damaged or of another version counts as none, since all of it can be computed.
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
    rest, seal, _ = text.rpartition(_SEAL)
    # To hash the text as it is takes a tenth of the time of writing it again.
    if seal and document["sha256"] == _hash(rest + "}"):
        return True
    return bool(document["sha256"] == document_hash(document))


def _stored_table(document: Mapping[str, Any]) -> StoredTable:
    columns: list[str] = document["columns"]
    ids = [model[_MODEL_FIELDS.index("run_id")] for model in document["models"]]
    plain, attacked, _ = document["counts"]
    by_key: dict[str, Numbers] = {}
    by_place: dict[tuple[str, int, str], Numbers] = {}
    for index, row in enumerate(document["rows"]):
        model, epoch, variant, key, *values = row
        numbers = Numbers(zip(columns, values, strict=True))
        # Plain numbers on the rows that an attack asked have the place of those under the attack.
        if index < plain + attacked:
            by_place[ids[model], epoch, variant] = numbers
        if key:
            by_key[key] = numbers
    metrics = json.loads(json.dumps(document["metrics"]), object_hook=decode_floats)
    return StoredTable(
        by_key,
        by_place,
        document["rules"],
        metrics,
        MovedNumbers.from_json(document["moved"]),
    )
