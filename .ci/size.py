"""Print the size of the code by room and the imports between rooms: CI's first step.

For each room it prints lines of code, statements and syntax nodes. A line counts if it has code: no
blank line, comment or docstring. The counts show how the project grows, and nothing limits them.

It fails only if a room imports from its own floor or from a higher one.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


# Parts of the syntax that stand for no thought of their own.
IGNORED_NODES = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
NO_STATEMENTS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def is_bare_string(node: ast.AST) -> bool:
    """Whether the node is a docstring or another string that stands alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


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
def statements_and_nodes(text: str) -> tuple[int, int]:
    """Count statements that do something, and all syntax nodes, without docstrings and imports.

    Nodes per statement show how much a reader has to hold in mind at once.
    """
    statements = 0
    nodes = 0
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if is_bare_string(node) or isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.stmt) and not isinstance(node, NO_STATEMENTS):
            statements += 1
        if not isinstance(node, (*IGNORED_NODES, ast.Module)):
            nodes += 1
        waiting += ast.iter_child_nodes(node)
    return statements, nodes


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
    """Print the table and return the exit code: 1 if an import does not go downward."""
    lines: Counter[str] = Counter()
    statements: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    imports: dict[str, set[str]] = {}
    for room, path in sources():
        text = path.read_text(encoding="utf-8")
        statement_count, node_count = statements_and_nodes(text)
        lines[room] += code_lines(text)
        statements[room] += statement_count
        nodes[room] += node_count
        imports.setdefault(room, set()).update(imported_rooms(text) - {room})

    print(f"{'room':12}{'lines':>7}{'statements':>12}{'nodes':>8}  imports")
    upward: list[str] = []
    for room in sorted(lines, key=floor):
        imported = sorted(imports[room] & lines.keys())
        upward += [f"{room} → {other}" for other in imported if floor(other) >= floor(room)]
        counts = f"{lines[room]:7}{statements[room]:12}{nodes[room]:8}"
        print(f"{room:12}{counts}  {', '.join(imported) or 'none'}")
    print(f"{'all':12}{lines.total():7}{statements.total():12}{nodes.total():8}")

    if upward:
        print(f"These imports do not go to a lower floor: {', '.join(upward)}")
    return int(bool(upward))


if __name__ == "__main__":
    sys.exit(main())
