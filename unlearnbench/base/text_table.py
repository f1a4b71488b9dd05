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
"""Width of what no terminal shows, such as the text in a pipe or file."""
LARGEST_PARAGRAPH = 100
"""Longer lines of prose are hard to read."""
_NARROWEST = 40
_GAP = "  "
_NARROWEST_FLOW = 18
"""A sentence in a narrower column is hard to read."""


def width_of(stream: TextIO) -> int:
    """Return the columns that a text for `stream` may take; the variable COLUMNS overrides it."""
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
        indent: What all lines but the first begin with.
    """
    lines = _broken(text, min(width, LARGEST_PARAGRAPH), indent)
    return "\n".join(lines)


def _broken(text: str, width: int, indent: str = "") -> list[str]:
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    lines = wrapper.wrap(text.replace(" %", "\0%"))
    return [line.replace("\0", " ") for line in lines] or [""]


@dataclass(frozen=True)
class _Column:
    heading: str
    cells: Sequence[str]
    is_number: bool
    flows: bool

    @property
    def heading_width(self) -> int:
        return len(self.heading)

    @property
    def narrowest_heading(self) -> int:
        return _longest_word([self.heading])

    @property
    def cell_width(self) -> int:
        return max(map(len, self.cells), default=0)

    @property
    def width(self) -> int:
        """The width with the heading in one line."""
        return max(self.heading_width, self.cell_width)

    @property
    def narrowest(self) -> int:
        """The least width in which no name and no number is broken."""
        cells = self.cell_width
        if self.flows:
            cells = max(_longest_word(self.cells), min(cells, _NARROWEST_FLOW))
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
        headings: Of the columns.
        rows: Cells as text, without line breaks.
        numbers: Positions of columns that are aligned to the right.
        flowing: Headings of the columns whose cells are sentences or lists.
        keys: Number of first columns that say what a row is. They are repeated if the columns are
            divided over several tables.
        width: Columns of the terminal. None: as wide as the table is, one line for each row.
    """
    columns = [
        _Column(heading, [row[place] for row in rows], place in numbers, heading in flowing)
        for place, heading in enumerate(headings)
    ]
    parts = [columns] if width is None else _divided(columns, keys, width)
    lines: list[str] = []
    for number, part in enumerate(parts):
        if number:
            lines.append("")
        lines += _part_lines(part, width)
    return lines


def _divided(columns: Sequence[_Column], keys: int, width: int) -> list[list[_Column]]:
    """Divide columns over tables that are narrow enough; each begins with the key columns."""
    if _total(column.narrowest for column in columns) <= width:
        return [[*columns]]
    repeated = [*columns[:keys]]
    parts: list[list[_Column]] = []
    part = [*repeated]
    for column in columns[keys:]:
        is_full = _total(each.narrowest for each in (*part, column)) > width
        if is_full and len(part) > len(repeated):
            parts.append(part)
            part = [*repeated]
        part.append(column)
    return [*parts, part]


def _total(widths: Iterable[int]) -> int:
    """The width of columns with the gaps between them."""
    listed = [*widths]
    return sum(listed) + len(_GAP) * max(len(listed) - 1, 0)


def _part_lines(columns: Sequence[_Column], width: int | None) -> list[str]:
    widths = _widths(columns, width)
    head = [
        _broken(column.heading, max(size, column.narrowest_heading))
        for column, size in zip(columns, widths, strict=True)
    ]
    most = max(map(len, head), default=0)
    # The last line of each heading stands directly above its cells.
    head = [[""] * (most - len(lines)) + lines for lines in head]
    lines = _row_lines(columns, head, widths)
    for number in range(len(columns[0].cells) if columns else 0):
        cells = [
            _broken(column.cells[number], size) if column.flows else [column.cells[number]]
            for column, size in zip(columns, widths, strict=True)
        ]
        lines += _row_lines(columns, cells, widths)
    return lines


def _row_lines(
    columns: Sequence[_Column], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> list[str]:
    """The lines of one row, whose cells may have several lines each."""
    lines: list[str] = []
    for number in range(max(map(len, cells), default=0)):
        texts: list[str] = []
        for column, parts, size in zip(columns, cells, widths, strict=True):
            text = parts[number] if number < len(parts) else ""
            texts.append(text.rjust(size) if column.is_number else text.ljust(size))
        lines.append(_GAP.join(texts).rstrip())
    return lines


def _widths(columns: Sequence[_Column], width: int | None) -> list[int]:
    """Widths of columns that together need no more than `width`, if that is possible."""
    widths = [column.width for column in columns]
    if width is None or _total(widths) <= width:
        return widths
    # First the headings are broken, then the cells of flowing columns.
    widths = [max(column.narrowest_heading, column.cell_width) for column in columns]
    excess = _total(widths) - width
    while excess > 0:
        shrinkable = [
            place
            for place, column in enumerate(columns)
            if column.flows and widths[place] > column.narrowest
        ]
        if not shrinkable:
            return widths
        widest = max(shrinkable, key=lambda place: widths[place])
        widths[widest] -= 1
        excess -= 1
    # Room that is left goes to the headings that then need only one line, from the left.
    for place, column in enumerate(columns):
        more = max(0, column.heading_width - widths[place])
        if more <= -excess:
            widths[place] += more
            excess += more
    return widths
