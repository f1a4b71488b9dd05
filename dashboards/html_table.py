"""Tables of the page: columns compute the text and the sort key of each line."""

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
    """A number as a bar in its cell, see `templates/score_bar.html.j2`.

    All numbers are shares of the bar's length.
    """

    value: float
    interval: Ends | None = None
    start: float | None = None
    retain: float | None = None


@dataclass(frozen=True)
class HtmlTable:
    """A sortable table, printed by the macro in `templates/table.html.j2`."""

    id: str
    label: str
    columns: Sequence[Column]
    """The first one names the method."""
    lines: Sequence[Any]
    family: Callable[[Any], str]
    """Method of a line, by which the page colours and filters it."""
    panel: Callable[[Any], int] | None = None
    """Number of the panel of a line, by which the page hides it; None: lines are of all."""
    references: Sequence[Any] = ()
    """Lines of the retain and start models, which stand below and are no methods."""
    bars: Mapping[str, Callable[[Any], Bar | None]] = field(default_factory=dict)
    """By the title of a column, the bar of a line; None for a line without the number."""


def number_column(
    title: str, value: Callable[[Any], float | None], digits: int, align: str = "num"
) -> Column:
    """Make a column of plain numbers."""
    return Column(title, lambda item: signed(value(item), digits), value, align)
