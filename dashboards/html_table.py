"""Tables of the page: columns compute the text and the sort key of each line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from markupsafe import Markup

from .formatting import signed

Line = TypeVar("Line")


@dataclass(frozen=True)
class Column(Generic[Line]):
    """One column: its heading, and the text and sort key of a line."""

    title: str
    text: Callable[[Line], str]
    """Plain text, or Markup."""
    key: Callable[[Line], float | str | None] | None = None
    """Number or text to sort by; without it, lines are sorted by the text."""
    align: str = "num"
    """CSS classes of the cells."""
    is_result: bool = False
    """True if the column needs a result; lines without one show the reason instead."""


@dataclass(frozen=True)
class HtmlTable(Generic[Line]):
    """A sortable table, printed by the macro in `templates/table.html.j2`."""

    id: str
    label: str
    columns: tuple[Column[Line], ...]
    """The first one names the method."""
    lines: tuple[Line, ...]
    family: Callable[[Line], str]
    """Method of a line, by which the page colours and filters it."""
    no_result: Callable[[Line], str] = lambda _: ""
    """Reason why a line has no result; empty if it has one."""
    panel: Callable[[Line], int] | None = None
    """Number of the panel of a line, by which the page hides it; None: lines are of all."""

    def cells(self, line: Line) -> list[Cell]:
        """Compute the cells after the first; a missing result is one cell with the reason."""
        reason = self.no_result(line)
        cells: list[Cell] = []
        for column in self.columns[1:]:
            if not (reason and column.is_result):
                cells.append(Cell(column.text(line), _key(column, line), column.align))
            elif cells[-1].align != "none":
                width = sum(item.is_result for item in self.columns)
                cells.append(Cell(reason, None, "none", width))
        return cells


@dataclass(frozen=True)
class Cell:
    """One cell of a line, as printed."""

    text: str
    key: str | None
    align: str
    width: int = 1
    """Columns that it spans."""


def _key(column: Column[Line], line: Line) -> str | None:
    if column.key is None:
        return None
    key = column.key(line)
    return "" if key is None else key if isinstance(key, str) else repr(key)


def number_column(
    title: str, value: Callable[[Line], float | None], digits: int, align: str = "num"
) -> Column[Line]:
    """Make a column of plain numbers."""
    return Column(title, lambda item: signed(value(item), digits), value, align)


def in_brackets(mean: float | None, ends: str, digits: int) -> Markup:
    """Format a mean, followed by its interval in small print: `−2.00 min-max [−3.00, −1.00]`."""
    return Markup("{} <small>{}</small>").format(signed(mean, digits), ends)
