"""Tables of the user's own, as a configuration names them, and the cells of their rows."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from unlearnbench.base.errors import DataError
from unlearnbench.base.messages import fault
from unlearnbench.base.row_texts import row_text
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

    The rows travel to the workers of a sweep with the configuration. Plans and records have only
    their hash, so a command that reads these files later needs the rows again.
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
    # The import takes a second. Whoever has such an object has imported the package already.
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
    """Return the tag of the form in which one table is named."""
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

The forms are tagged, so that an error is only about the form that is stated."""
RowsBySplit = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[TableSection, Tag("<section>")]
    | Annotated[PythonRows, Tag("<python>")]
    | Annotated[dict[str, Rows], Tag("<splits>")],
    Discriminator(_form),
    BeforeValidator(_from_python),
]
"""One table, or one for each split by the split's name."""


class Table:
    """A table that can be read, with its columns."""

    def __init__(self, rows: str | TableSection | PythonRows, setting: str) -> None:
        """Open the table.

        Args:
            rows: The table as a configuration names it.
            setting: The setting that names it, such as `data.forget`.

        Raises:
            DataError: There is no such table, or it has no columns.
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
        """Yield the rows, with texts in `text_columns`, see `read_table`."""
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


def words_of(row: TableRow, column: str) -> str:
    """Return the text of a column.

    Raises:
        DataError: The cell is missing, blank, or no text.
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
