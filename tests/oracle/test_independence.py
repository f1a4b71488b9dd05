"""The recomputation shares no code with what it checks."""

import ast
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
MODULES = (
    *("read", "texts", "numbers", "benchmarks", "rows", "settings", "means", "places", "choices"),
    *("attackers", "lasting", "comparison", "sentences", "tracked", "claims"),
)
"""Modules that compute. Others compare, and import both sides."""
CHECKED = (
    *("unlearnbench", "unlearnbench_methods", "unlearnbench_modifiers"),
    *("methods", "modifiers", "dashboards", "configs"),
)
ALLOWED = {"numpy", "scipy", "safetensors", "nltk", "tests"}


def imported_by(file: Path) -> set[str]:
    """Return the packages outside the standard library that a file imports anywhere."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add(node.module or ".")
    return {name.partition(".")[0] for name in packages} - sys.stdlib_module_names


def test_the_recomputation_imports_no_code_that_it_checks() -> None:
    for module in MODULES:
        assert imported_by(HERE / f"{module}.py") <= ALLOWED, module


def test_from_tests_the_recomputation_imports_only_itself() -> None:
    for module in MODULES:
        for node in ast.walk(ast.parse((HERE / f"{module}.py").read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                first, second, *rest = (node.module or "").split(".")
                assert (first, second) == ("tests", "oracle"), module
                names = rest or [alias.name for alias in node.names]
                assert {*names} <= {*MODULES}, module


def test_the_recomputation_reads_a_folder_where_the_package_cannot_be_imported() -> None:
    root = HERE.parent.parent
    program = f"""
import sys
from pathlib import Path

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {CHECKED}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Block())
from tests.oracle.claims import Claims

claims = Claims.of(Path("tests/data/small_sweep"))
assert claims.numbers
assert not {{name.partition(".")[0] for name in sys.modules}} & {{*{CHECKED}}}
"""
    environment = {"PYTHONPATH": str(root), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
