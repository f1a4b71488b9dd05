"""Rows of one file, each with the line or number at which it stands.

Most readers of `datasets` guess types from values. What is done about it depends on the format:

- Parquet and Arrow files state their types. They are read as they are.
- CSV and TSV files are read as text throughout (`csv_rows.py`).
- JSON is decoded by Python (`json_rows.py`).
- A text file has a passage between two blank lines, and a row for each passage.

A file that has no sound rows ends with a DataError that names the file and the line.
"""

from collections.abc import Iterator

from unlearnbench.base.csv_rows import csv_columns, csv_rows
from unlearnbench.base.json_rows import json_rows
from unlearnbench.base.table_formats import Format, NumberedRow, TableFile
from unlearnbench.base.table_streams import (
    BATCH,
    as_data_error,
    lines_of,
    plain_columns,
    rows_of_batches,
    stream_of,
)


def rows_of_file(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the rows of a file.

    Raises:
        DataError: The file cannot be read, or has something that is no row.
    """
    match file.format:
        case Format.JSON:
            return json_rows(file)
        case Format.CSV:
            return csv_rows(file)
        case Format.PARQUET | Format.ARROW:
            return _typed_rows(file)
        case Format.TEXT:
            return _passages(file)


def columns_of_file(file: TableFile) -> tuple[str, ...]:
    """Return the names of the columns, in the order in which they appear.

    A JSON file is read to its end, because a column that only its last row has is a column, too.

    Raises:
        DataError: The file cannot be read, or has something that is no row.
    """
    match file.format:
        case Format.TEXT:
            return ("text",)
        case Format.CSV:
            return csv_columns(file)
        case Format.JSON:
            names: dict[str, None] = {}
            for row in json_rows(file):
                names.update(dict.fromkeys(row.values))
            return tuple(names)
        case Format.PARQUET | Format.ARROW:
            with as_data_error(file):
                return tuple(stream_of(file).features or ())


def _typed_rows(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the rows of a Parquet or Arrow file."""
    with as_data_error(file):
        yield from rows_of_batches(plain_columns(stream_of(file)).iter(BATCH))


def _passages(file: TableFile) -> Iterator[NumberedRow]:
    """Yield passages, which have blank lines between them, each with its first line."""
    lines: list[str] = []
    begin = 0
    for number, line in enumerate(lines_of(file), start=1):
        if line.strip():
            if not lines:
                begin = number
            lines.append(line)
        elif lines:
            yield _passage(begin, lines)
            lines = []
    if lines:
        yield _passage(begin, lines)


def _passage(begin: int, lines: list[str]) -> NumberedRow:
    return NumberedRow(begin, {"text": "\n".join(lines).strip()})
