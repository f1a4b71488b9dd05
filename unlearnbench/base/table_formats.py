"""Formats of files with rows, and what a file and a row are.

Three groups of modules read tables. `tables.py` finds the rows of a source, `table_files.py` the
files that a source consists of, and `file_rows.py` the rows of one file, with a module for each
format that needs one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, NamedTuple


class Format(Enum):
    """Formats of files, by the name of their reader in the package `datasets`."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    TEXT = "text"


_FORMAT_OF_SUFFIX = {
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".txt": Format.TEXT,
}
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
FORMATS_TEXT = "JSON lines, JSON, CSV, TSV, Parquet, Arrow or text"


def format_of(name: str) -> Format | None:
    """Return the format that a file's name states: CSV for `forget.csv.gz`.

    Returns:
        None if the file is no table.
    """
    suffixes = PurePath(name.lower()).suffixes
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes = suffixes[:-1]
    return _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None


@dataclass(frozen=True)
class TableFile:
    """A file with rows."""

    path: Path
    name: str
    """Name of the file in messages."""
    format: Format
    separator: str | None = None
    """Character between the values of a CSV file. None for a tab if the suffix is .tsv, and for a
    comma if not."""
    header: tuple[str, ...] | None = None
    """Columns of a CSV file without a header line. None if its first line names them."""
    member: str | None = None
    """Key under which a JSON document has its rows. None if the document itself is the rows."""


class NumberedRow(NamedTuple):
    """A row and its place in the file."""

    number: int
    """Line at which the row begins. For Parquet and Arrow, the number of the row. Both count from
    1."""
    values: Mapping[str, Any]
    """Values by column."""
