"""Tables of the page. Their columns compute the text and the sort key of each line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unlearnbench.report.best_table import Column

from .formatting import signed


class Ends(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Bar:
    """A number as a bar in its cell, drawn by `templates/score_bar.html.j2`.

    All numbers are fractions of the bar's length.
    """

    value: float
    interval: Ends | None = None
    start: float | None = None
    """The start model's number, as a mark on the bar."""
    retain: float | None = None
    """The retain model's number, as a mark on the bar."""


@dataclass(frozen=True)
class HtmlTable:
    """A sortable table, printed by the macro in `templates/table.html.j2`."""

    id: str
    label: str
    columns: Sequence[Column]
    """The first column names the method."""
    lines: Sequence[Any]
    """Values of any type. The columns and the functions below read them."""
    family: Callable[[Any], str]
    """Returns the method of a line, by which the page colours and filters the line."""
    panel: Callable[[Any], int] | None = None
    """Returns the number of a line's panel, by which the page hides the line. None if the lines
    hold for all panels."""
    references: Sequence[Any] = ()
    """Lines of the retain and start models, which stand below the methods."""
    bars: Mapping[str, Callable[[Any], Bar | None]] = field(default_factory=dict)
    """Functions that return the bar of a line, by the title of the column. A line without the
    number has no bar."""


def number_column(
    title: str, value: Callable[[Any], float | None], digits: int, align: str = "num"
) -> Column:
    """Make a column of plain numbers."""
    return Column(title, lambda line: signed(value(line), digits), value, align)
