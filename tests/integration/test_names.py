"""The rules of words: module names, docstrings, class names (CONTRIBUTING.md, Style)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("unlearnbench", "dashboards", "methods")
    for path in (ROOT / folder).rglob("*.py")
]
OPENINGS = ("What", "That", "Those", "Whether", "Of", "Whoever")
"""First words after which a docstring has no verb, or no subject."""
VERBS = {"tell", "told", "say", "said", "hear", "heard", "ask", "asked", "befall", "mend", "spare"}
"""Printing is `print`, logging `log`, storing `save` or `write`; a label is a `label`."""
PUBLIC = {"asked"}
"""A hyper-parameter of AltPO, in configurations and run ids."""

Definition = ast.Module | ast.ClassDef | ast.FunctionDef


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def definitions() -> Iterator[tuple[Path, Definition]]:
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, Definition):
                yield path, node


def stem(name: str) -> tuple[str, ...]:
    """The words of a module's name without their endings: compare, comparing, comparison."""
    return tuple(
        re.sub(r"(isons?|ations?|ings?|ions?|ers?|ors?|ed|es|e|s)$", "", word) or word
        for word in name.split("_")
    )


def test_stems_of_one_word_are_equal() -> None:
    assert stem("compare") == stem("comparing") == stem("comparison")
    assert stem("check") == stem("checks") == stem("checking")
    assert stem("ranges") != stem("search")


def test_no_module_name_is_an_inflection_of_another() -> None:
    names: dict[tuple[Path, tuple[str, ...]], list[str]] = defaultdict(list)
    for path in FILES:
        if path.stem != "__init__":
            names[path.parent, stem(path.stem)].append(path.stem)
    assert [alike for alike in names.values() if len(alike) > 1] == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, node in definitions()
        if (text := ast.get_docstring(node)) and re.match(rf"({'|'.join(OPENINGS)})\b", text)
    ]
    assert wrong == []


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_functions_and_variables_use_the_fields_verbs() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for node in ast.walk(tree(path))
        for name in assigned(node)
        if name not in PUBLIC and VERBS & {*re.findall(r"[a-z]+", name.lower().replace("_", " "))}
    ]
    assert wrong == []


def assigned(node: ast.AST) -> list[str]:
    """The name that `node` gives to a function, a class, an argument or a variable."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return []
