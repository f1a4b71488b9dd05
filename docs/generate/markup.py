"""Markdown from values: tables, and docstrings whose formulas keep their lines."""

import re
from collections.abc import Sequence
from itertools import takewhile

from mathml import equation


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


_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples", "Note")
"""Headings of sections in Google style, which mkdocstrings turns into lists."""


def from_docstring(text: str) -> str:
    """A docstring as Markdown: equations are set, aligned lists keep their lines, prose flows.

    Lines with a run of spaces inside or before them are kept; so is all that stands before them in
    their paragraph. The rest of it is prose. Sections in Google style are left to mkdocstrings.
    """
    made: list[str] = []
    is_in_section = False
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.splitlines()
        begins_section = lines[0].removesuffix(":") in _SECTIONS and lines[0].endswith(":")
        is_in_section = begins_section or (is_in_section and lines[0].startswith("    "))
        if is_in_section:
            made.append(part.replace("<", "&lt;"))
            continue
        equations = [*takewhile(_is_equation, lines)]
        if equations:
            made.append(f'<div class="equations">{"".join(map(equation, equations))}</div>')
            lines = lines[len(equations) :]
        kept = max((i for i, line in enumerate(lines, start=1) if _is_aligned(line)), default=0)
        if kept:
            made.append("```{.text .formula}\n" + "\n".join(lines[:kept]) + "\n```")
        if kept < len(lines):
            made.append(_prose("\n".join(lines[kept:])))
    return "\n\n".join(made)


def _prose(text: str) -> str:
    """A paragraph of a docstring as Markdown; `[source: …]` becomes a sentence in small letters."""
    parts = re.split(r"\s*\[source:\s*([^\]]+)\]", text)
    shown = [escaped(part) for part in parts]
    for i in range(1, len(shown), 2):
        source = re.sub(r"^ours: (.*)", r"ours (\1)", shown[i], flags=re.DOTALL)
        shown[i] = f" <small>Source: {source}.</small>"
    return re.sub(r"^Literature:", "**Literature:**", "".join(shown).lstrip())


def _is_equation(line: str) -> bool:
    return bool(re.match(r"\S{1,12} = ", line)) and not line.endswith(".")


def _is_aligned(line: str) -> bool:
    return bool(re.search(r"\S  +\S|^  ", line))
