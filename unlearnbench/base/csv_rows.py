"""Rows of a CSV or TSV file, with all values as text: "007", "NA" and "2020-01-01" stay as written.

Two readers see each file. pandas reads the values for `datasets`, but it fills short rows, shifts
the columns of long ones, and knows no lines. Python's `csv` therefore looks at the file before. It
checks the number of values in each row and finds the line at which each row begins.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from unlearnbench.base.errors import DataError, shortened
from unlearnbench.base.table_formats import Format, NumberedRow, TableFile
from unlearnbench.base.table_streams import (
    as_data_error,
    opened_text,
    rows_of_batches,
    text_batches,
)

_BLANK = 0
"""Stands for a blank line in place of the line of a row."""


@dataclass(frozen=True)
class _Layout:
    """The place of everything in a CSV file, as Python's `csv` sees it."""

    columns: tuple[str, ...]
    blank_lines_before: int
    """Number of lines before the header."""
    lines: list[int] = field(default_factory=list)
    """Line at which each row begins. `_BLANK` for a blank line, which pandas reads as a row."""


def csv_rows(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the rows of a CSV file, all values as text.

    Raises:
        DataError: The file cannot be read, has no header, or has a row of another length.
    """
    layout = _layout(file, all_rows=True)
    import datasets

    features = datasets.Features({name: datasets.Value("string") for name in layout.columns})
    options: dict[str, Any] = {
        "features": features,
        "sep": _separator(file),
        "skiprows": layout.blank_lines_before or None,
        "na_filter": False,
        "keep_default_na": False,
        "skip_blank_lines": False,
        "index_col": False,
    }
    if file.header is not None:
        options |= {"header": None, "names": list(file.header)}
    with as_data_error(file):
        rows = rows_of_batches(text_batches(file, Format.CSV, **options))
        for line, row in zip(layout.lines, rows, strict=True):
            if line != _BLANK:
                yield NumberedRow(line, row.values)


def csv_columns(file: TableFile) -> tuple[str, ...]:
    """Return the names of the columns of a CSV file."""
    return _layout(file, all_rows=False).columns


def _separator(file: TableFile) -> str:
    if file.separator is not None:
        return file.separator
    # The suffix of a compression may follow: `forget.tsv.gz`.
    return "\t" if ".tsv" in PurePath(file.path.name.lower()).suffixes else ","


def _layout(file: TableFile, *, all_rows: bool) -> _Layout:
    """Read the header and, if asked for, the lines at which rows begin.

    Raises:
        DataError: There is no header, or a row has more or fewer values than the header.
    """
    layout: _Layout | None = None
    if file.header is not None:
        layout = _Layout(file.header, 0)
    # The limit holds for the whole process. Texts of a benchmark of books exceed its default.
    limit = csv.field_size_limit(sys.maxsize)
    begin = 1
    """Line at which the current row begins. A row with line breaks in its values has several."""
    with as_data_error(file), opened_text(file, newline="") as stream:
        reader = csv.reader(stream, delimiter=_separator(file), strict=True)
        try:
            for values in reader:
                if layout is not None:
                    layout.lines.append(_line_of_row(file, layout, begin, values))
                elif not _is_blank(values, column_count=None):
                    layout = _Layout(_header(file, begin, values), begin - 1)
                    if not all_rows:
                        break
                begin = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{file.name}:{begin}: broken CSV ({error}); put a text with quotes between "
                'quotes, and write each of its own twice: ""'
            ) from error
        finally:
            csv.field_size_limit(limit)
    if layout is None:
        raise DataError(f"{file.name}: empty; the first line should name the columns")
    return layout


def _is_blank(values: Sequence[str], column_count: int | None) -> bool:
    """Whether a line has no values.

    Args:
        values: Values of the line.
        column_count: Number of columns, None before the header. A blank text can be a value if
            there is one column.
    """
    if not values:
        return True
    is_blank_text = len(values) == 1 and not values[0].strip()
    return is_blank_text and column_count != 1


def _header(file: TableFile, line: int, values: Sequence[str]) -> tuple[str, ...]:
    """Check and return the names of the columns.

    Raises:
        DataError: A column has no name, or two columns have the same name.
    """
    place = f"{file.name}:{line}"
    if any(not value.strip() for value in values):
        raise DataError(f"{place}: a column has no name; the first line should name the columns")
    for value in values:
        if values.count(value) > 1:
            raise DataError(f"{place}: two columns have the name {shortened(value)}")
    return tuple(values)


def _line_of_row(file: TableFile, layout: _Layout, line: int, values: Sequence[str]) -> int:
    """Check a row, and return its line; `_BLANK` if there are no values.

    Raises:
        DataError: The row has more or fewer values than there are columns.
    """
    count = len(layout.columns)
    if _is_blank(values, count):
        return _BLANK
    if len(values) != count:
        separator = _separator(file)
        separator_text = "a tab" if separator == "\t" else repr(separator)
        raise DataError(
            f"{file.name}:{line}: {_counted(len(values), 'value')}, but there "
            f"{'is' if count == 1 else 'are'} {_counted(count, 'column')} "
            f"({shortened(', '.join(layout.columns))}); put a text that has "
            f"{separator_text} between quotes"
        )
    return line


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"
