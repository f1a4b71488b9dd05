"""Lists of names with a one-line summary each, in groups, as all `list` commands print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unlearnbench.base.console import Console
from unlearnbench.base.text_table import paragraph, table_lines, width_of

_INDENT = "  "


@dataclass(frozen=True)
class Entry:
    """A line of a list."""

    name: str
    summary: str
    group: str = ""


def print_catalogue(
    entries: Sequence[Entry], headings: Mapping[str, str], hint: str, console: Console
) -> None:
    """Print names and summaries; names are never cut, and summaries continue below themselves.

    Args:
        entries: In the order of their group.
        headings: Of groups, in the order in which they are printed. Other groups follow under
            their own name.
        hint: Sentence on where the rest is, which does not go into a pipe.
        console: Where to print.
    """
    groups = dict.fromkeys((*headings, *(entry.group for entry in entries)))
    longest = max((len(entry.name) for entry in entries), default=0)
    is_first = True
    for group in groups:
        # A summary is no sentence, but the first line of a docstring.
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
