"""Tables and paragraphs as plain text that fits a terminal.

A table keeps every name and every number whole, so it gets narrower in three steps:

1. Headings are broken at spaces.
2. The cells of *flowing* columns (sentences and lists) are broken at spaces.
3. The columns are divided over several tables, one below the other, and each of them repeats the
   first columns, which say what a row is.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

WIDTH = 80
"""Width of a text that no terminal shows, for example in a pipe or file."""
LARGEST_PARAGRAPH = 100
"""Longer lines of prose are hard to read."""
_NARROWEST = 40
"""Width to write for if the terminal is narrower, or states a width that cannot be right."""
_GAP = "  "
"""Text between two columns."""
_NARROWEST_FLOW = 18
"""A sentence in a narrower column is hard to read."""


def width_of(stream: TextIO) -> int:
    """Return the number of columns that a text may take.

    Args:
        stream: Stream that the text is written to. The environment variable COLUMNS overrides the
            width of its terminal.
    """
    variable = os.environ.get("COLUMNS", "")
    width = int(variable) if variable.isdecimal() else 0
    if not width and stream.isatty():
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            width = 0
    return max(width or WIDTH, _NARROWEST)


def paragraph(text: str, width: int, indent: str = "") -> str:
    """Break a text at spaces, but never between a number and its per cent sign.

    Args:
        text: One paragraph.
        width: Columns of a terminal.
        indent: Text before all lines except the first one.
    """
    return "\n".join(_broken(text, min(width, LARGEST_PARAGRAPH), indent))


def _broken(text: str, width: int, indent: str = "") -> list[str]:
    """Return the lines of a text. A word that is wider than `width` has a line of its own."""
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    # A null character stands for the space before "%", because no line is broken there.
    lines = wrapper.wrap(text.replace(" %", "\0%"))
    return [line.replace("\0", " ") for line in lines] or [""]


@dataclass(frozen=True)
class _Column:
    """A column of a table. Widths are in characters."""

    heading: str
    cells: Sequence[str]
    is_number: bool
    """Whether the cells are aligned to the right."""
    flows: bool
    """Whether the cells may be broken at spaces."""

    @property
    def heading_width(self) -> int:
        """Width of the heading in one line."""
        return len(self.heading)

    @property
    def narrowest_heading(self) -> int:
        """Width of the heading with a line for each word."""
        return _longest_word([self.heading])

    @property
    def cell_width(self) -> int:
        """Width of the cells in one line each."""
        return max(map(len, self.cells), default=0)

    @property
    def width(self) -> int:
        """Width in which nothing is broken."""
        return max(self.heading_width, self.cell_width)

    @property
    def narrowest(self) -> int:
        """The smallest width in which no name and no number is broken."""
        if self.flows:
            cells = max(_longest_word(self.cells), min(self.cell_width, _NARROWEST_FLOW))
        else:
            cells = self.cell_width
        return max(self.narrowest_heading, cells)


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def table_lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    *,
    flowing: Collection[str] = (),
    keys: int = 1,
    width: int | None = WIDTH,
) -> list[str]:
    """Return the lines of a table.

    Args:
        headings: Headings of the columns.
        rows: Cells as text, without line breaks.
        numbers: Indices of the columns that are aligned to the right.
        flowing: Headings of the columns whose cells are sentences or lists.
        keys: Number of columns at the left that say what a row is. They are repeated if the columns
            are divided over several tables.
        width: Columns of the terminal. None for a table as wide as it is, with a line for each row.
    """
    columns = [
        _Column(heading, [row[index] for row in rows], index in numbers, heading in flowing)
        for index, heading in enumerate(headings)
    ]
    tables = [columns] if width is None else _divided(columns, keys, width)
    lines: list[str] = []
    for index, columns_of_table in enumerate(tables):
        if index > 0:
            lines.append("")
        lines += _lines_of_columns(columns_of_table, width)
    return lines


def _divided(columns: Sequence[_Column], keys: int, width: int) -> list[list[_Column]]:
    """Divide columns over tables that are narrow enough. Each begins with the key columns.

    A column that is too wide by itself has a table of its own, which is wider than the terminal.
    """
    if _total(column.narrowest for column in columns) <= width:
        return [[*columns]]
    key_columns = [*columns[:keys]]
    tables: list[list[_Column]] = []
    table = [*key_columns]
    for column in columns[keys:]:
        is_full = _total(other.narrowest for other in (*table, column)) > width
        has_more_than_keys = len(table) > len(key_columns)
        if is_full and has_more_than_keys:
            tables.append(table)
            table = [*key_columns]
        table.append(column)
    tables.append(table)
    return tables


def _total(widths: Iterable[int]) -> int:
    """Return the width of columns with the gaps between them."""
    listed = list(widths)
    gap_count = max(len(listed) - 1, 0)
    return sum(listed) + len(_GAP) * gap_count


def _lines_of_columns(columns: Sequence[_Column], width: int | None) -> list[str]:
    """Return the lines of one table: its headings and its rows."""
    widths = _widths(columns, width)
    headings = [
        _broken(column.heading, max(column_width, column.narrowest_heading))
        for column, column_width in zip(columns, widths, strict=True)
    ]
    line_count = max(map(len, headings), default=0)
    # The last line of each heading stands directly above its cells.
    headings = [[""] * (line_count - len(heading)) + heading for heading in headings]
    lines = _lines_of_row(columns, headings, widths)
    row_count = len(columns[0].cells) if columns else 0
    for row in range(row_count):
        cells = [
            _broken(column.cells[row], column_width) if column.flows else [column.cells[row]]
            for column, column_width in zip(columns, widths, strict=True)
        ]
        lines += _lines_of_row(columns, cells, widths)
    return lines


def _lines_of_row(
    columns: Sequence[_Column], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> list[str]:
    """Return the lines of one row.

    Args:
        columns: The columns.
        cells: For each column, the lines of its cell.
        widths: For each column, its width.
    """
    line_count = max(map(len, cells), default=0)
    lines: list[str] = []
    for index in range(line_count):
        texts: list[str] = []
        for column, cell_lines, width in zip(columns, cells, widths, strict=True):
            text = cell_lines[index] if index < len(cell_lines) else ""
            texts.append(text.rjust(width) if column.is_number else text.ljust(width))
        lines.append(_GAP.join(texts).rstrip())
    return lines


def _widths(columns: Sequence[_Column], width: int | None) -> list[int]:
    """Return widths of columns that together need no more than `width`, if that is possible."""
    widths = [column.width for column in columns]
    if width is None or _total(widths) <= width:
        return widths

    # First the headings are broken, then the cells of flowing columns, the widest one first.
    widths = [max(column.narrowest_heading, column.cell_width) for column in columns]
    excess = _total(widths) - width
    while excess > 0:
        shrinkable = [
            index
            for index, column in enumerate(columns)
            if column.flows and widths[index] > column.narrowest
        ]
        if not shrinkable:
            return widths
        widest = max(shrinkable, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1

    # Headings are joined again, from the left, as far as there is room.
    room = -excess
    for index, column in enumerate(columns):
        needed = max(0, column.heading_width - widths[index])
        if needed <= room:
            widths[index] += needed
            room -= needed
    return widths
