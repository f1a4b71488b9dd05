"""The chart of the page on speed: a bar for each line of the page's first table."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from markup import escaped

PLACE = "<!-- chart of the table below -->"
"""Comment of a page that the chart replaces."""
_HEADINGS = ("what is timed", "usual way", "unlearnbench")


class Timing(NamedTuple):
    """A line of the table."""

    label: str
    usual: float
    """Seconds of the usual way."""
    ours: float
    """Seconds of this project."""


def with_chart(page: str) -> str:
    """Return the page with the chart in its place; a page without such a place stays as it is."""
    if PLACE not in page:
        return page
    return page.replace(PLACE, chart([*timings(page)]))


def timings(page: str) -> Iterator[Timing]:
    """Read the timings from the only table of a page that has the chart's columns.

    Raises:
        ValueError: If there is no such table, or if a time is no number.
    """
    tables = re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE)
    for table in tables:
        rows = [
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()
        ]
        if {*_HEADINGS} <= {*rows[0]}:
            break
    else:
        raise ValueError(f"no table with the columns {', '.join(_HEADINGS)}")
    label, usual, ours = (rows[0].index(heading) for heading in _HEADINGS)
    # The second line divides the headings from the rows.
    for row in rows[2:]:
        yield Timing(row[label], _seconds(row[usual]), _seconds(row[ours]))


def _seconds(cell: str) -> float:
    found = re.fullmatch(r"([\d,.]+)\s+s", cell)
    if found is None:
        raise ValueError(f"{cell!r} is no number of seconds, such as '15.4 s'")
    return float(found[1].replace(",", ""))


def chart(timings: list[Timing]) -> str:
    """Draw a bar for each timing: the time of this project as a part of the usual way's."""
    bars = "".join(_bar(timing) for timing in timings)
    return (
        f'<figure class="bars">{bars}<figcaption>The whole bar is the time of the usual way, and '
        "the dark part is the time of unlearnbench. A shorter dark part is better."
        "</figcaption></figure>\n"
    )


def _bar(timing: Timing) -> str:
    part = 100 * min(timing.ours / timing.usual, 1)
    faster = timing.usual / timing.ours
    return (
        f'<div class="bar"><span class="label">{escaped(timing.label)}</span>'
        f'<span class="whole"><span class="part" style="width: {part:.1f}%"></span></span>'
        f'<span class="value">{faster:.1f}×</span></div>'
    )
