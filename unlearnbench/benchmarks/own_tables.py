"""Tables of the user's own, as a configuration names them, and which of their rows are taken."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from unlearnbench.base.errors import DataError, did_you_mean, shortened
from unlearnbench.base.messages import fault
from unlearnbench.base.row_texts import are_row_texts_hidden, row_text
from unlearnbench.base.tables import TableRow, TableSource, column_names, read_table


class TableSection(BaseModel):
    """A table in a section of its own: `{path: org/notes, split: "train[:2000]"}`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    path: str = Field(description="file, folder, or id on the hub")
    config: str | None = Field(default=None, description="configuration of a data set on the hub")
    split: str | None = Field(
        default=None,
        description="split of the data set, such as `train` or `train[:2000]`; default: the only "
        "split, or `train`",
    )
    revision: str | None = Field(default=None, description="commit or tag on the hub")


class PythonRows(BaseModel):
    """Rows that were given in Python, as an object of the package `datasets`.

    They travel to the workers of a sweep with the configuration. Plans and records have only their
    hash, so that commands that read those files later need the rows again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    python_rows: str = Field(description="hash of the rows of a `datasets.Dataset`")
    dataset: Any = Field(default=None, exclude=True, repr=False, description="the object")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PythonRows) and self.python_rows == other.python_rows

    def __hash__(self) -> int:
        return hash(self.python_rows)


def _from_python(value: Any) -> Any:
    """Take an object of `datasets`; anything else is returned as it is."""
    # Whoever has such an object has imported the package, which takes a second.
    package = sys.modules.get("datasets")
    if package is None or isinstance(value, str | BaseModel):
        return value
    if isinstance(value, package.DatasetDict | package.IterableDatasetDict):
        names = ", ".join(map(str, value))
        raise fault(f"is a data set with the splits {names}; give one of them")
    if isinstance(value, package.IterableDataset):
        raise fault("is an IterableDataset, whose rows can be read once; give a Dataset")
    if isinstance(value, package.Dataset):
        return PythonRows(python_rows=_hash_of_rows(value), dataset=value)
    return value


def _hash_of_rows(dataset: Iterable[Mapping[str, Any]]) -> str:
    """Return 16 hex digits of the SHA-256 of all rows."""
    digest = hashlib.sha256()
    for row in dataset:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def _form(value: Any) -> str:
    """Return the tag of the form in which rows are named."""
    if isinstance(value, PythonRows):
        return "<python>"
    if isinstance(value, TableSection):
        return "<section>"
    if not isinstance(value, Mapping):
        return "<text>"
    if "python_rows" in value:
        return "<python>"
    # A split that is called `path` would be read as a table.
    return "<section>" if "path" in value else "<splits>"


def _form_of_one(value: Any) -> str:
    form = _form(value)
    return "<section>" if form == "<splits>" else form


Rows = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[TableSection, Tag("<section>")]
    | Annotated[PythonRows, Tag("<python>")],
    Discriminator(_form_of_one),
    BeforeValidator(_from_python),
]
"""One table: text as `TableSource.parse` reads it, a section, or rows given in Python.

The forms are tagged, so that errors are about one of them."""
RowsBySplit = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[TableSection, Tag("<section>")]
    | Annotated[PythonRows, Tag("<python>")]
    | Annotated[dict[str, Rows], Tag("<splits>")],
    Discriminator(_form),
    BeforeValidator(_from_python),
]
"""One table, or one for each split by the split's name."""
Scalar = str | bool | int | float
Filter = dict[str, Scalar | tuple[Scalar, ...]]
"""Wanted values by column: all keys must hold, and one of the values of a list."""


class Table:
    """A table that can be read, with its columns."""

    def __init__(self, rows: str | TableSection | PythonRows, setting: str) -> None:
        """Open the table.

        Args:
            rows: As a configuration names it.
            setting: The setting that names it, such as `data.forget`.

        Raises:
            DataError: If there is no such table, or it has no columns.
        """
        self.setting = setting
        self._source: TableSource | Any
        if isinstance(rows, PythonRows):
            if rows.dataset is None:
                raise DataError(
                    f"{setting}: these rows were given in Python, and only their hash "
                    f"({rows.python_rows}) is stored; give the same Dataset object again, or write "
                    "it to a file (Dataset.to_json) and name the file"
                )
            self._source = rows.dataset
            self.label = f"the Dataset in {setting}"
            self.columns = tuple(rows.dataset.column_names)
        else:
            self._source = source_of(rows)
            self.label = self._source.label
            self.columns = column_names(self._source)
        if not self.columns:
            raise DataError(f"{setting}: {self.label} is empty; name a table with rows")

    def read(self, text_columns: Collection[str]) -> Iterator[TableRow]:
        """Yield the rows, with these columns as text."""
        return read_table(self._source, text_columns=text_columns)


def source_of(rows: str | TableSection) -> TableSource:
    """Return the table that a configuration names."""
    if isinstance(rows, str):
        return TableSource.parse(rows)
    parsed = TableSource.parse(rows.path)
    return TableSource(
        parsed.path,
        rows.config or parsed.config,
        rows.split or parsed.split,
        rows.revision or parsed.revision,
    )


def is_missing(value: Any) -> bool:
    """Whether a cell has no value: null, NaN, or an empty text, as a cell of CSV."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


_WORDS_OF_BOOLEANS = {True: ("yes", "on", "true", "y"), False: ("no", "off", "false", "n")}
"""Texts that a person means who writes a boolean in YAML."""


@dataclass(frozen=True)
class RowFilter:
    """Which rows of a marked table are to be forgotten."""

    wanted: Mapping[str, tuple[Scalar, ...]]
    """Values by column, of which a row has one in each of these columns."""
    setting: str = "data.forget_if"
    """Where the values were named, for messages."""

    @classmethod
    def of(cls, section: Filter, setting: str = "data.forget_if") -> RowFilter:
        """Return the filter of the section `forget_if`, or of the option `--forget-if`."""
        wanted = {
            column: values if isinstance(values, tuple) else (values,)
            for column, values in section.items()
        }
        return cls(wanted, setting)

    def matches(self, table: Table, rows: Sequence[TableRow]) -> list[bool]:
        """Return whether each row is to be forgotten.

        Raises:
            DataError: If a column is missing, a wanted value is in no row, or no row is left on
                one of both sides.
        """
        for column in self.wanted:
            if column not in table.columns:
                near = did_you_mean(column, table.columns, cutoff=0.6)
                raise DataError(
                    f"{self.setting}: {table.label} has no column {column!r}{near or ';'} its "
                    f"columns are {', '.join(table.columns)}"
                )
        self._check_values(table, rows)
        matches = [self._matches(row.values) for row in rows]
        if not any(matches):
            raise DataError(
                f"{self.setting}: no row of {table.label} has all of {self._words}; several keys "
                "mean that all of them hold"
            )
        if all(matches):
            raise DataError(
                f"{self.setting}: all {len(rows)} rows of {table.label} match {self._words}, so "
                "that none is left to retain; match fewer, or name two tables in place of one"
            )
        return matches

    @property
    def _words(self) -> str:
        return ", ".join(
            f"{column}: {' or '.join(map(shortened, values))}"
            for column, values in self.wanted.items()
        )

    def _matches(self, values: Mapping[str, Any]) -> bool:
        return all(
            any(equals(values.get(column), value) for value in wanted)
            for column, wanted in self.wanted.items()
        )

    def _check_values(self, table: Table, rows: Sequence[TableRow]) -> None:
        """Raise DataError for a wanted value that no row has."""
        for column, wanted in self.wanted.items():
            cells = [row.values.get(column) for row in rows]
            for value in wanted:
                if not any(equals(cell, value) for cell in cells):
                    raise DataError(self._unmatched(table, column, value, cells))

    def _unmatched(self, table: Table, column: str, value: Scalar, cells: Sequence[Any]) -> str:
        text = f"{self.setting}: no row of {table.label} has {column}: {shortened(value)}"
        present = [cell for cell in cells if not is_missing(cell)]
        if not present:
            return f"{text}; the column is empty"
        if are_row_texts_hidden():
            return f"{text}; its values are hidden by keep_texts: false"
        if isinstance(value, bool):
            # YAML reads yes, no, on and off as true and false.
            meant = [cell for cell in present if str(cell).lower() in _WORDS_OF_BOOLEANS[value]]
            if meant:
                return (
                    f"{self.setting}: {column}: YAML reads yes, no, on, off, true and false as "
                    f"true or false, and {table.label} has the text {meant[0]!r}; write it in "
                    f'quotes: {column}: "{meant[0]}"'
                )
        # All cells of CSV are text, and quotes make text of a number in YAML.
        alike = next((cell for cell in present if str(cell).strip() == str(value).strip()), None)
        if alike is not None and isinstance(alike, str) and not isinstance(value, str):
            return f"{text}, a number, but there is the text {alike!r}; write {column}: {alike!r}"
        if alike is not None and not isinstance(alike, str | int | float):
            return (
                f"{text}; the column has {kind_of(alike)}, and only texts, numbers, true and false "
                "can be matched: write the column as text"
            )
        if alike is not None and not isinstance(alike, str):
            return f"{text}, a text, but there is the number {alike}; write it without quotes"
        if alike is not None:
            return f"{text}, but {alike!r}, which has other blanks; write {column}: {alike!r}"
        texts = [cell for cell in present if isinstance(cell, str)]
        near = did_you_mean(str(value), texts, cutoff=0.75) if texts else ""
        examples = ", ".join(shortened(cell) for cell in _first_distinct(present, 3))
        return f"{text}{near or ';'} it has values such as {examples}"


def equals(cell: Any, wanted: Scalar) -> bool:
    """Whether a cell has a wanted value: a text, a number or true or false, each only as itself."""
    if is_missing(cell):
        return False
    if isinstance(cell, bool) or isinstance(wanted, bool):
        return isinstance(cell, bool) and isinstance(wanted, bool) and cell == wanted
    if isinstance(cell, str) or isinstance(wanted, str):
        return isinstance(cell, str) and cell == wanted
    return bool(cell == wanted)


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def typed_values(text: str, cells: Sequence[Any]) -> tuple[Scalar, ...]:
    """Return what a value of the command line means in a column.

    The command line has only texts, so `1972` may be the text or the number. It is each of them
    that a cell has, because a row that is overlooked would be retained.

    Args:
        text: The value as it was typed.
        cells: All cells of the column.

    Returns:
        One value or several. If no cell has any of them, the one whose type fits the column best.
    """
    readings: list[Scalar] = [text]
    if text.lower() in {"true", "false"}:
        readings.append(text.lower() == "true")
    elif _NUMBER.fullmatch(text):
        readings.append(float(text) if set(text) & set(".eE") else int(text))
    found = tuple(value for value in readings if any(equals(cell, value) for cell in cells))
    if found:
        return found
    has_texts = any(isinstance(cell, str) and not is_missing(cell) for cell in cells)
    return (readings[0] if has_texts else readings[-1],)


def _first_distinct(cells: Sequence[Any], count: int) -> list[Any]:
    distinct: list[Any] = []
    for cell in cells:
        if cell not in distinct:
            distinct.append(cell)
        if len(distinct) == count:
            break
    return distinct


def words_of(row: TableRow, column: str) -> str:
    """Return the text of a column.

    Raises:
        DataError: If it is missing, blank, or no text.
    """
    value = row.values.get(column)
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        raise DataError(f"{row.place}: column {column!r} is blank; write a text, or remove the row")
    if not isinstance(value, str):
        raise DataError(
            f"{row.place}: column {column!r} has {kind_of(value)}; it must be a text: write it in "
            "quotes, or name another column"
        )
    return value


def kind_of(value: Any) -> str:
    """Return the kind of a value in words, with the value: `the number 7`, `a list of 3`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return f"an object with {', '.join(map(str, value)) or 'no keys'}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"the {type(value).__name__} {row_text(value)}"


def subject_of(row: TableRow, column: str) -> str:
    """Return what a row is about; empty if the cell is."""
    value = row.values.get(column)
    return "" if is_missing(value) else str(value).strip()
