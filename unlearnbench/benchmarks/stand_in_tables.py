"""Tables of JSON lines, until `base/tables.py` reads every format."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.base.errors import DataError
from unlearnbench.base.hub import Repository


@dataclass(frozen=True)
class TableSource:
    """Where a table is."""

    path: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableSource:
        """Read a path."""
        return cls(text)

    @property
    def repository(self) -> Repository | None:
        """None: the table is on this machine."""
        return None

    @property
    def label(self) -> str:
        """The path."""
        return self.path


@dataclass(frozen=True)
class TableRow:
    """A row and its place."""

    values: Mapping[str, Any]
    place: str


def read_table(
    source: TableSource | Any, *, text_columns: Collection[str] = ()
) -> Iterator[TableRow]:
    """Yield the rows."""
    del text_columns
    if not isinstance(source, TableSource):
        for number, row in enumerate(source, 1):
            yield TableRow(row, f"row {number}")
        return
    try:
        text = Path(source.path).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{source.path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield TableRow(json.loads(line), f"{source.path}:{number}")


def column_names(source: TableSource | Any) -> tuple[str, ...]:
    """Return the columns."""
    return tuple({name: None for row in read_table(source) for name in row.values})
