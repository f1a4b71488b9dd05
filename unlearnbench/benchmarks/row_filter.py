"""Which rows of a marked table are to be forgotten: `forget_if`, and `--forget-if`.

A value matches only a cell of its own type, because a wrong guess would retain a row that should be
forgotten. A value that no row has is an error, and the message says what the column has instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.base.errors import DataError, did_you_mean, shortened
from unlearnbench.base.row_texts import are_row_texts_hidden
from unlearnbench.base.tables import TableRow
from unlearnbench.benchmarks.own_tables import Table, is_missing, kind_of

Scalar = str | bool | int | float
Filter = dict[str, Scalar | tuple[Scalar, ...]]
"""Wanted values by column. A row must match all keys, and one of the values if a key has several.
For example, `{"author": ("J. Doe", "A. Roe"), "year": 1972}`."""
_WORDS_OF_BOOLEANS = {True: ("yes", "on", "true", "y"), False: ("no", "off", "false", "n")}
"""Texts that a person may mean by a boolean, because YAML reads most of them as one."""


@dataclass(frozen=True)
class RowFilter:
    """A condition for the rows of a table."""

    wanted: Mapping[str, tuple[Scalar, ...]]
    """Values by column. A matching row has one of the values in each of these columns."""
    setting: str = "data.forget_if"
    """Setting or option that names the values, for messages."""

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
            DataError: A column is missing, a wanted value is in no row, or all rows are on one
                side.
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
        """The condition in words: `author: J. Doe or A. Roe, year: 1972`."""
        return ", ".join(
            f"{column}: {' or '.join(map(shortened, values))}"
            for column, values in self.wanted.items()
        )

    def _matches(self, values: Mapping[str, Any]) -> bool:
        for column, wanted in self.wanted.items():
            cell = values.get(column)
            if not any(equals(cell, value) for value in wanted):
                return False
        return True

    def _check_values(self, table: Table, rows: Sequence[TableRow]) -> None:
        """Check that each wanted value is in a row, because a misspelt one would forget nothing.

        Raises:
            DataError: A wanted value is in no row.
        """
        for column, wanted in self.wanted.items():
            cells = [row.values.get(column) for row in rows]
            for value in wanted:
                if not any(equals(cell, value) for cell in cells):
                    raise DataError(self._unmatched(table, column, value, cells))

    def _unmatched(self, table: Table, column: str, value: Scalar, cells: Sequence[Any]) -> str:
        """Return the message about a value that no cell of a column has."""
        text = f"{self.setting}: no row of {table.label} has {column}: {shortened(value)}"
        filled_cells = [cell for cell in cells if not is_missing(cell)]
        if not filled_cells:
            return f"{text}; the column is empty"
        if are_row_texts_hidden():
            return f"{text}; its values are hidden by keep_texts: false"
        if isinstance(value, bool):
            # YAML reads yes, no, on and off as true and false.
            words = _WORDS_OF_BOOLEANS[value]
            meant = [cell for cell in filled_cells if str(cell).lower() in words]
            if meant:
                return (
                    f"{self.setting}: {column}: YAML reads yes, no, on, off, true and false as "
                    f"true or false, and {table.label} has the text {meant[0]!r}; write it in "
                    f'quotes: {column}: "{meant[0]}"'
                )
        for cell in filled_cells:
            if str(cell).strip() == str(value).strip():
                return f"{text}{_difference(column, value, cell)}"
        texts = [cell for cell in filled_cells if isinstance(cell, str)]
        near = did_you_mean(str(value), texts, cutoff=0.75) if texts else ""
        examples = ", ".join(shortened(cell) for cell in _first_distinct(filled_cells, 3))
        return f"{text}{near or ';'} it has values such as {examples}"


def _difference(column: str, value: Scalar, cell: Any) -> str:
    """Say how a cell that reads like a wanted value differs from it, and what to write."""
    if isinstance(cell, str) and not isinstance(value, str):
        # All cells of CSV are text.
        return f", a number, but there is the text {cell!r}; write {column}: {cell!r}"
    if not isinstance(cell, str | int | float):
        return (
            f"; the column has {kind_of(cell)}, and only texts, numbers, true and false "
            "can be matched: write the column as text"
        )
    if not isinstance(cell, str):
        # Quotes make text of a number in YAML.
        return f", a text, but there is the number {cell}; write it without quotes"
    return f", but {cell!r}, which has other blanks; write {column}: {cell!r}"


def equals(cell: Any, wanted: Scalar) -> bool:
    """Whether a cell has a wanted value.

    Texts, numbers, and true or false each equal only values of their own type.
    """
    if is_missing(cell):
        return False
    if isinstance(cell, bool) or isinstance(wanted, bool):
        return isinstance(cell, bool) and isinstance(wanted, bool) and cell == wanted
    if isinstance(cell, str) or isinstance(wanted, str):
        return isinstance(cell, str) and cell == wanted
    return bool(cell == wanted)


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def typed_values(text: str, cells: Sequence[Any]) -> tuple[Scalar, ...]:
    """Return the values that a text of the command line means in a column.

    The command line has only texts, so `1972` may be the text or the number. It means each of the
    two that a cell has, because a row that is overlooked would be retained.

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
        is_float = any(sign in text for sign in ".eE")
        readings.append(float(text) if is_float else int(text))
    found = tuple(value for value in readings if any(equals(cell, value) for cell in cells))
    if found:
        return found
    has_texts = any(isinstance(cell, str) and not is_missing(cell) for cell in cells)
    return (readings[0] if has_texts else readings[-1],)


def _first_distinct(cells: Sequence[Any], count: int) -> list[Any]:
    """Return the first few cells that differ. Cells may be lists, which have no hash."""
    distinct: list[Any] = []
    for cell in cells:
        if cell not in distinct:
            distinct.append(cell)
        if len(distinct) == count:
            break
    return distinct
