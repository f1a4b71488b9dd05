"""Lists of names with a one-line summary each, in groups, as all `list` commands print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unlearnbench.base.console import Console
from unlearnbench.base.text_table import paragraph, table_lines, width_of

_INDENT = "  "


@dataclass(frozen=True)
class Entry:
    """A name in a list."""

    name: str
    summary: str
    group: str = ""
    """Empty if the list has no groups."""


def print_catalogue(
    entries: Sequence[Entry], headings: Mapping[str, str], hint: str, console: Console
) -> None:
    """Print names and summaries. Names are never cut; long summaries are wrapped.

    Args:
        entries: In any order of groups. Within a group, their order stays.
        headings: By group, in the order in which the groups are printed. Other groups follow, under
            their own name.
        hint: Sentence on where to find more. It goes to standard error, so not into a pipe.
        console: Where to print.
    """
    groups = dict.fromkeys((*headings, *(entry.group for entry in entries)))
    longest = max((len(entry.name) for entry in entries), default=0)
    is_first = True
    for group in groups:
        # A summary is the first line of a docstring, which may end with a full stop.
        rows = [
            (entry.name.ljust(longest), entry.summary.removesuffix("."))
            for entry in entries
            if entry.group == group
        ]
        if not rows:
            continue
        heading = headings.get(group, group)
        if heading:
            console.print(heading if is_first else f"\n{heading}")
        is_first = False
        indent = _INDENT if heading else ""
        width = width_of(console.out) - len(indent)
        _, *lines = table_lines(("", "summary"), rows, flowing={"summary"}, width=width)
        for line in lines:
            console.print(f"{indent}{line}")
    if hint:
        console.note(f"\n{paragraph(hint, width_of(console.err))}")
