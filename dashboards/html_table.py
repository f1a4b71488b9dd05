"""Tables of the page: columns compute the text and the sort key of each line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.report.best_table import Column

from .formatting import signed


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


def number_column(
    title: str, value: Callable[[Any], float | None], digits: int, align: str = "num"
) -> Column:
    """Make a column of plain numbers."""
    return Column(title, lambda item: signed(value(item), digits), value, align)
