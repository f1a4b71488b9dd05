"""Markdown from values: tables, and docstrings whose formulas keep their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; a column without a value in any row is left out."""
    used = [i for i in range(len(headings)) if any(str(row[i]) for row in rows)]
    lines = [[headings[i] for i in used], ["---"] * len(used)]
    lines += [[str(row[i]).replace("\n", " ") for i in used] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def escaped(text: str) -> str:
    """Text as Markdown that shows it as it is, also in a table; spans of code stay code."""
    spans = re.split(r"(`[^`]*`)", text)
    return "".join(
        span
        if span.startswith("`")
        else re.sub(r"([\\*_|\[\]])", r"\\\1", span).replace("<", "&lt;")
        for span in spans
    )


def code(value: object) -> str:
    """A value as code."""
    text = str(value)
    return f"`{text}`" if text else "`''`"


def from_docstring(text: str) -> str:
    """A docstring as Markdown: formulas and aligned lists keep their lines, prose flows.

    A paragraph keeps its lines if one of them has a run of spaces inside or before it, or where
    it is an equation.
    """
    parts = [one for one in re.split(r"\n\s*\n", text.strip("\n")) if one.strip()]
    return "\n\n".join(
        f"```{{.text .formula}}\n{part}\n```" if _is_set(part) else escaped(part) for part in parts
    )


def _is_set(part: str) -> bool:
    lines = part.splitlines()
    equation = re.match(r"\S{1,12} = ", lines[0]) and not lines[0].endswith(".")
    return bool(equation) or any(re.search(r"\S  +\S|^  ", line) for line in lines)
