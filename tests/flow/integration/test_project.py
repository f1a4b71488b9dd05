"""The project's own rules: layers, what may import what, packaging, public names."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import unlearnbench
from unlearnbench.api import registry

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = ("unlearnbench", "methods", "modifiers", "configs", "dashboards")

ONLY = {"ray": {"sweep"}, "mlflow": {"report"}, "plotly": set[str]()}


def modules() -> Iterator[tuple[str, Path]]:
    """(stage, file) of every module of the core."""
    for path in sorted((ROOT / "unlearnbench").rglob("*.py")):
        if path.name == "__init__.py" and path.parent.name == "unlearnbench":
            continue
        yield path.relative_to(ROOT / "unlearnbench").parts[0].removesuffix(".py"), path


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that `path` imports, anywhere in it: for a type alone, too."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            if node.module == "unlearnbench":
                yield from (f"unlearnbench.{name.name}" for name in node.names)


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return importlib.import_module("size")


def test_size_counts_lines_statements_and_nodes(size: Any) -> None:
    text = '"""Doc."""\n\nx = (\n    1,  # why\n)\n# alone\ndef f():\n    """Doc\n    more."""\n'
    assert size.code_lines(text) == 4
    # One assignment. Its nodes: Assign, Name, Tuple, Constant, FunctionDef and the empty arguments.
    assert size.statements_and_nodes(text) == (1, 6)
    text = "from unlearnbench import api\nimport unlearnbench.metrics.x\n"
    assert size.imported_rooms(text) == {"api", "plug-ins"}


def test_imports_between_rooms_go_downward(
    size: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size.main() == 0, capsys.readouterr().out
    monkeypatch.setattr(size, "FLOORS", size.FLOORS[::-1])
    assert size.main() == 1
    assert "api → base" in capsys.readouterr().out


@pytest.mark.parametrize("package", sorted(ONLY))
def test_heavy_libraries_are_imported_in_one_room(package: str) -> None:
    for stage, path in modules():
        if stage not in ONLY[package]:
            assert package not in {name.split(".")[0] for name in imports(path)}, path


def test_nobody_imports_a_plugin_package() -> None:
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            bad = {n for n in imports(path) if n.startswith(("unlearnbench_", "methods"))}
            assert not bad, path


def test_public_names() -> None:
    names = unlearnbench.__all__
    assert names == sorted(names)
    assert set(names) == set(unlearnbench._HOME)  # pyright: ignore[reportPrivateUsage]
    for name in names:
        assert getattr(unlearnbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(unlearnbench, "nothing")  # noqa: B009  # mypy refuses the plain form


def test_every_package_is_listed() -> None:
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    folders = {folder: name for name, folder in mapping.items()}
    found = {
        ".".join([folders[path.relative_to(ROOT).parts[0]], *path.relative_to(ROOT).parts[1:-1]])
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_sweep_of_every_method_has_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    every: Any = importlib.import_module("every_method")
    text, methods = every.CONFIG.read_text(), every.built_in()
    assert every.completed(text, methods) == text, "make fix adds what it lacks"
    assert "\n  new,\n]\nepochs: 5\n" in every.completed(text, {*methods, "new"})


@pytest.mark.parametrize("kind", ["methods", "modifiers"])
def test_every_file_of_a_kind_is_declared_and_installed(kind: registry.Kind) -> None:
    declared = PROJECT["project"]["entry-points"][f"unlearnbench.{kind}"]
    files = {path.stem for path in (ROOT / kind).glob("*.py")} - {"__init__"}
    homes = {value.split(":")[0] for value in declared.values()}
    assert homes == {f"unlearnbench_{kind}.{name}" for name in files}
    assert {name.replace("-", "_") for name in declared} == files, "a file has its plug-in's name"
    assert set(declared) <= set(registry.names(kind)), "re-run pip install -e ."
