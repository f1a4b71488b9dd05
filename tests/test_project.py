"""The project's own rules: layers, what may import what, packaging, public names, file sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

import unlearnbench
from unlearnbench import registry

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = ("unlearnbench", "methods", "configs", "dashboards")

FLOW = [
    *(
        "errors",
        "redaction",
        "bounded",
        "outputs",
        "stopping",
        "plugin_code",
        "fresh_process",
        "notices",
        "digests",
        "tensor_file",
        "durable",
        "locks",
        "hub",
        "optional",
        "step",
        "frozen",
        "schedule",
        "recipe",
        "group",
        "sharding",
        "execution",
        "device",
        "searching",
        "patience",
        "settings",
        "projection",
        "fused",
        "kernels",
        "losses",
        "method",
        "retain",
        "registry",
    ),
    *(
        "scalars",
        "document",
        "problems",
        "ranges",
        "overrides",
        "grid",
        "spaces",
        "plan",
        "checks",
        "config",
        "workload",
    ),
    *(
        "data",
        "shortage",
        "models",
        "inputs",
        "footprint",
        "reference",
        "sampling",
        "alternatives",
        "minibatch",
        "optimisation",
        "optimizer_state",
        "training",
        "checkpoint",
        "preparation",
        "evaluation",
    ),
    *(
        "run_state",
        "provenance",
        "peak",
        "floats",
        "plausible",
        "records",
        "outcomes",
        "storage",
        "workspace",
        "tasks",
        "trainers",
    ),
    *("wrapping", "sizing", "preflight", "judged", "trained", "running"),
    *("testing", "anatomy", "table", "front", "intervals", "ranking", "selection", "links"),
    *(
        "report",
        "paired",
        "power",
        "ranks",
        "unequal",
        "starts",
        "matching",
        "comparison",
        "rivals",
    ),
    *("claims", "verdict"),
    *("figures", "leaderboard", "console", "entries", "background", "mlflow_store", "tracking"),
    *("folder", "environment", "serving", "live"),
    *("forecast", "standing", "display", "progress", "spent", "ledger", "stages"),
    *(
        "sweep",
        "bench",
        "memory",
        "planning",
        "commands",
        "evaluating",
        "benching",
        "listing",
        "scaffold",
        "figuring",
        "reviewing",
        "boards",
        "mlflow_commands",
    ),
    *("arguments", "checking", "comparing", "bench_parser", "figures_parser", "review_parser"),
    *("mlflow_parser", "parser", "cli", "__main__"),
]
"""From a configuration to its results; a stage imports only what stands before it."""

LATER = {
    ("checks", "table"): "a metric's name, too",
    ("checks", "evaluation"): "a profile's name is checked with the rest of the configuration",
}
"""Imports inside a function that point downstream, each with its reason."""

ONLY = {"ray": {"sweep"}, "mlflow": {"mlflow_store", "tracking"}, "plotly": set[str]()}


def modules() -> Iterator[tuple[str, Path]]:
    """(stage, file) of every module of the core."""
    for path in sorted((ROOT / "unlearnbench").rglob("*.py")):
        if path.name == "__init__.py" and path.parent.name == "unlearnbench":
            continue
        yield path.relative_to(ROOT / "unlearnbench").parts[0].removesuffix(".py"), path


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that `path` imports, anywhere in it but under TYPE_CHECKING."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
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
            downstream = FLOW.index(parts[1]) > FLOW.index(stage)
            if downstream and (stage, parts[1]) not in LATER:
                wrong.append(f"{path.name} imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", sorted(ONLY))
def test_only_one_stage_knows_of(package: str) -> None:
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
    code = "import sys, unlearnbench, unlearnbench.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())


def test_public_names() -> None:
    names = unlearnbench.__all__
    assert names == sorted(names)
    assert len(names) <= 15
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


def test_every_method_file_is_declared_and_installed() -> None:
    declared = PROJECT["project"]["entry-points"]["unlearnbench.methods"]
    files = {path.stem for path in (ROOT / "methods").glob("*.py")} - {"__init__"}
    homes = {value.split(":")[0] for value in declared.values()}
    assert homes == {f"unlearnbench_methods.{name}" for name in files}
    assert {name.replace("-", "_") for name in declared} == files, "file names equal method names"
    assert set(declared) <= set(registry.names("methods")), "re-run pip install -e ."


def test_shipped_configurations_stay_short() -> None:
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
