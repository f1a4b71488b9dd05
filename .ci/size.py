"""Print lines of code by room and the imports between rooms: CI's first step.

A line counts if it has code: no blank, comment or docstring. An arrow is one room importing from
another. It fails above a ceiling, and where a room imports from its own floor or a higher one.
Deleting lowers the ceilings; what raises one names its price in the commit.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = {"lines": 32_913, "arrows": 92}
FLOORS = (
    {"base", "losses"},
    {"stats"},
    {"api"},
    {"plug-ins", "config"},
    {"models"},
    {"training", "evaluation"},
    {"results"},
    {"runs", "analysis"},
    {"report"},
    {"sweep", "testing"},
    {"cli"},
)
"""The rooms, from the ground up."""
PARTS = dict.fromkeys(("methods", "modifiers", "metrics", "attacks", "benchmarks"), "plug-ins") | {
    "dashboards": "report",
    "__main__": "cli",
}
"""Folders that are one room together with others."""


def sources() -> Iterator[tuple[str, Path]]:
    """(room, file) of every module of the package, the plug-ins beside it and the dashboards."""
    for folder in ("unlearnbench", "methods", "modifiers", "dashboards"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).parts
            name = inside[0].removesuffix(".py") if folder == "unlearnbench" else folder
            yield PARTS.get(name, name), path


@cache
def code_lines(text: str) -> int:
    """Lines with code: no blanks, comments, docstrings."""
    found = enumerate(map(str.strip, text.splitlines()), start=1)
    lines = {number for number, line in found if line and not line.startswith("#")}
    nodes = [*ast.walk(ast.parse(text))]
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))  # a string has any lines
    for node in nodes:
        value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            lines.difference_update(range(value.lineno, (value.end_lineno or 0) + 1))
    return len(lines)


@cache
def imported_rooms(text: str) -> set[str]:
    """The rooms of the package that a module imports from, anywhere in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{name.name}" for name in node.names]
    rooms = {name.split(".")[1] for name in names if name.startswith("unlearnbench.")}
    return {PARTS.get(room, room) for room in rooms}


def floor(room: str) -> int:
    """The index of a room's floor; the package's own file is above all."""
    return next((i for i, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))


def main() -> int:
    """Print the table; returns the exit code."""
    lines: Counter[str] = Counter()
    arrows: dict[str, set[str]] = {}
    for room, path in sources():
        text = path.read_text(encoding="utf-8")
        lines[room] += code_lines(text)
        arrows.setdefault(room, set()).update(imported_rooms(text) - {room})
    rooms = {room: others & lines.keys() for room, others in arrows.items()}
    for room in sorted(lines, key=floor):
        print(f"{room:12}{lines[room]:6}  imports {', '.join(sorted(rooms[room])) or 'no other'}")
    wrong = [f"{a} → {b}" for a, into in rooms.items() for b in into if floor(b) >= floor(a)]
    totals = {"lines": lines.total(), "arrows": sum(map(len, rooms.values()))}
    for name, total in totals.items():
        print(f"{name}: {total}, ceiling {CEILINGS[name]}")
    if wrong:
        print(f"not from a lower floor: {', '.join(wrong)}")
    return int(bool(wrong) or any(total > CEILINGS[name] for name, total in totals.items()))


if __name__ == "__main__":
    sys.exit(main())
