"""The project's own rules: layers, what may import what, packaging, public names, file sizes."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import unlearnbench
from unlearnbench.api import registry

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = ("unlearnbench", "methods", "configs", "dashboards")

FLOW = [
    *("errors", "losses", "files", "stats", "runtime", "console", "api", "metrics", "attacks"),
    *(
        "config",
        "plan",
        "benchmarks",
        "data",
        "models",
        "training",
        "evaluation",
        "results",
        "estimates",
    ),
    *("testing", "runs", "analysis", "reporting", "figures", "tracking", "sweep", "cli"),
    "__main__",
]
"""The rooms, from the ground up; each imports only what stands before it."""

ACROSS = {
    *("cli/test_attacks", "cli/test_benchmarks", "cli/test_methods", "cli/test_metrics"),
    *("attacks/test_prompts", "cli/test_new_package", "dashboards/test_browser"),
    *("evaluation/test_published", "evaluation/test_eos_as_padding"),
    *("evaluation/test_architectures", "evaluation/test_golden_logs", "test_messages"),
    *("evaluation/test_prompt_shift", "models/test_unpadded"),
    "evaluation/test_question_key",
    *("evaluation/test_row_kinds", "training/test_text_rows"),
    *("runs/test_label_tokens", "sweep/test_secrets", "tracking/test_server"),
    "training/test_training_methods",
    "sweep/test_ray_faults",
    *(f"testing/test_{kind}_conformance" for kind in ("attack", "benchmark", "metric")),
}
"""Tests of several modules of a package; those of several packages are in `integration/`."""

ONLY = {"ray": {"sweep"}, "mlflow": {"tracking"}, "plotly": set[str]()}


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


def test_every_module_has_its_place_in_the_flow() -> None:
    stages = {stage for stage, _ in modules()}
    assert stages == set(FLOW)
    assert len(FLOW) == len(set(FLOW))


def test_imports_point_upstream() -> None:
    wrong: list[str] = []
    for stage, path in modules():
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "unlearnbench" or len(parts) == 1 or parts[1] == stage:
                continue
            if FLOW.index(parts[1]) > FLOW.index(stage):
                wrong.append(f"{path.name} imports {name}")
    assert not wrong


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


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    heavy = {"torch", "transformers", "ray", "mlflow", "plotly", "datasets", "scipy", "accelerate"}
    code = "import sys, unlearnbench, unlearnbench.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())


def test_the_code_is_no_larger_than_its_ceiling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    size: Any = importlib.import_module("size")
    text = '"""Doc."""\n\nx = (\n    1,  # why\n)\n# alone\ndef f():\n    """Doc\n    more."""\n'
    assert size.code_lines(text) == 4
    assert size.imported_rooms("from unlearnbench import api\nimport unlearnbench.files.x\n") == {
        *("api", "files")
    }
    assert size.main() == 0, capsys.readouterr().out
    for name in size.CEILINGS:
        with monkeypatch.context() as patch:
            patch.setitem(size.CEILINGS, name, 100)
            assert size.main() == 1


def test_public_names() -> None:
    names = unlearnbench.__all__
    assert names == sorted(names)
    assert len(names) <= 16
    assert set(names) == set(unlearnbench._HOME)  # pyright: ignore[reportPrivateUsage]
    for name in names:
        assert getattr(unlearnbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(unlearnbench, "nothing")  # noqa: B009  # mypy refuses the plain form


def test_the_page_of_the_architecture_has_the_packages_in_order_and_no_dead_path() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, flags=re.MULTILINE)
    assert packages == [name for name in FLOW if name != "__main__"]
    paths = re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", text)
    roots = (ROOT, ROOT / "unlearnbench", ROOT / "dashboards")
    assert paths
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []
    steps = re.findall(r"^ +((?:\w+\.)+)(\w+) {2,}", text, flags=re.MULTILINE)
    assert steps
    assert [(module, name) for module, name in steps if name not in defined(module)] == []


def defined(module: str) -> set[str]:
    """The names that a module defines."""
    parts = module.rstrip(".").split(".")
    root = ROOT if parts[0] == "dashboards" else ROOT / "unlearnbench"
    path = root.joinpath(*parts).with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def test_tests_mirror_the_packages() -> None:
    apart = {"integration", "gpu", "methods", "docs", "speed", "contracts"}
    for path in (ROOT / "tests").rglob("test_*.py"):
        place = path.relative_to(ROOT / "tests").with_suffix("")
        if place.parts[0] in apart or str(place) in ACROSS:
            continue
        module = place.with_name(place.name.removeprefix("test_"))
        homes = (ROOT / "unlearnbench" / module, ROOT / module)
        assert any(home.with_suffix(".py").exists() or home.is_dir() for home in homes), path
    assert all((ROOT / "tests" / f"{name}.py").exists() for name in ACROSS)


def test_few_files_stand_at_the_root() -> None:
    assert len([*(ROOT / "unlearnbench").glob("*.py")]) <= 5


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


def test_every_method_file_is_declared_and_installed() -> None:
    declared = PROJECT["project"]["entry-points"]["unlearnbench.methods"]
    files = {path.stem for path in (ROOT / "methods").glob("*.py")} - {"__init__"}
    homes = {value.split(":")[0] for value in declared.values()}
    assert homes == {f"unlearnbench_methods.{name}" for name in files}
    assert {name.replace("-", "_") for name in declared} == files, "file names equal method names"
    assert set(declared) <= set(registry.names("methods")), "re-run pip install -e ."


def test_shipped_configurations_are_short() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        text = path.read_text()
        assert len(text.splitlines()) <= 40, path
        assert text.startswith("#"), f"{path}: open with what it is for"
        assert isinstance(yaml.safe_load(text), dict)


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in line and "+" not in line for line in pins)
    assert "torch==2.13.0" in pins
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    extras = PROJECT["project"]["optional-dependencies"]
    names = ("lora", "search", "figures", "dev")  # as the Makefile does
    installed = [one for name in names for one in extras[name]]
    for requirement in [*PROJECT["project"]["dependencies"], *installed]:
        name = requirement.split(">=")[0].split("[")[0].lower().replace("_", "-")
        assert name in pinned, name
