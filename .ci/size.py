"""Print the size of the code by room and the imports between rooms: CI's first step.

For each room it prints lines of code, statements and syntax nodes. A line counts if it has code: no
blank line, comment or docstring. The counts show how the project grows, and nothing limits them.

It fails if a room imports from its own floor or from a higher one, and if modules of one room
import each other in a ring. An import inside a function, or for types only, counts like any other:
it avoids the error, but a reader still has to understand all modules of the ring at once.
"""

import ast
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
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


INSTALLED_NAMES = {
    "unlearnbench": "unlearnbench",
    "methods": "unlearnbench_methods",
    "modifiers": "unlearnbench_modifiers",
    "dashboards": "unlearnbench_dashboards",
}
"""The name under which each folder of packages is imported."""


def sources() -> Iterator[tuple[str, Path]]:
    """(room, file) of every module of the package, the plug-ins beside it and the dashboards."""
    for folder in INSTALLED_NAMES:
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


def module_name(path: Path) -> str:
    """The name by which a file is imported: `unlearnbench.api.method`."""
    folder, *inside = path.relative_to(ROOT).with_suffix("").parts
    if inside[-1] == "__init__":
        inside.pop()
    return ".".join([INSTALLED_NAMES[folder], *inside])


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """The other modules among `modules` that a file imports, anywhere in it."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:  # `from ..figures import page`
                parents = package.split(".")
                base = parents[: len(parents) - node.level + 1]
                source = ".".join([*base, source] if source else base)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                found.add(submodule if submodule in modules else source)
    return (found & set(modules)) - {name}


def rings(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The rings of a graph of imports: groups of modules that reach each other.

    Tarjan's algorithm for strongly connected components, in the order in which they are closed.
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        path.append(module)
        for imported in graph[module]:
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in path:
                lowest[module] = min(lowest[module], index[imported])
        if lowest[module] == index[module]:
            start = path.index(module)
            ring = path[start:]
            del path[start:]
            if len(ring) > 1:
                found.append(sorted(ring))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def rings_of_rooms(files: Collection[tuple[str, Path]]) -> list[str]:
    """The rings of imports inside each room, as lines for the terminal."""
    modules_of_room: dict[str, dict[str, Path]] = {}
    for room, path in files:
        modules_of_room.setdefault(room, {})[module_name(path)] = path
    lines: list[str] = []
    for modules in modules_of_room.values():
        graph = {name: imported_modules(path, modules) for name, path in modules.items()}
        lines += [" ↔ ".join(ring) for ring in rings(graph)]
    return lines


def floor(room: str) -> int:
    """The index of a room's floor; the package's own file is above all."""
    return next((i for i, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))


def main() -> int:
    """Print the table and return the exit code: 1 for an import that goes upward or in a ring."""
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
    found_rings = rings_of_rooms([*sources()])
    for ring in found_rings:
        print(f"These modules import each other in a ring: {ring}")
    return int(bool(upward or found_rings))


if __name__ == "__main__":
    sys.exit(main())
