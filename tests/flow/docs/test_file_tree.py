"""The page of files has every Python file of the project, with a line that says what it is for."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_every_file_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generate"))
    page: str = import_module("file_tree_page").page()
    for module in ("file_tree_page", "markup", "mathml"):
        sys.modules.pop(module, None)
    command = ["git", "ls-files", "*.py"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = [line for line in page.splitlines() if line.startswith("| `")]
    files = [path for path in map(Path, tracked.splitlines()) if (ROOT / path).stat().st_size]
    assert len(described) >= len(files)
    for path in files:
        lines = [line for line in described if line.startswith(f"| `{path.name}` | ")]
        assert lines, path
        assert all(len(line) > len(path.name) + 20 for line in lines), path
