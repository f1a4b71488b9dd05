"""The package that `methods new` writes passes its own tests once it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.plugin_commands import write_package
from unlearnbench.errors import PluginError
from unlearnbench.testing import check_method

from ..forked import start, wait

Run = Callable[..., tuple[int, str, str]]


USE = """
import os, sys
site, folder = sys.argv[1:]
sys.path.insert(0, site)
os.chdir(folder)
import pytest
from unlearnbench.cli.main import main
failed = pytest.main(["-q", "-W", "error"])
sys.exit(main(["methods", "show", "my-method"]) or failed)
"""


@pytest.mark.slow
def test_the_package_passes_its_own_tests_once_installed(tmp_path: Path) -> None:
    files = write_package("my-method", tmp_path)
    folder, site, output = files[0].parent, tmp_path / "site", tmp_path / "output.txt"
    assert {str(f.relative_to(folder)) for f in files} == {
        "pyproject.toml",
        "README.md",
        "my_method.py",
        "tests/test_my_method.py",
    }
    how = ("--no-deps", "--no-build-isolation", "--quiet", "--target", str(site))
    command = [sys.executable, "-m", "pip", "install", *how, "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": 1}  # of plug-ins that the fork has imported
    codes = wait([start(USE, [str(site), str(folder)], output=output, environment=alone)])
    text = output.read_text()
    assert codes == [0], text
    assert "24 passed, 3 skipped" in text  # it has no reference and no retain rows
    assert "my-method  (unlearnbench-my-method 0.1.0, my_method:MyMethod)" in text


def test_the_file_works_as_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_files", {})
    write_package("softer-ascent-2", tmp_path)
    name = registry.register_file(tmp_path / "softer-ascent-2" / "softer_ascent_2.py")
    assert name == "softer-ascent-2"
    assert registry.load_method(name).__name__ == "SofterAscent2"
    results = check_method(name, only=["needs", "reference", "references", "balance"])
    assert [r.check.name for r in results if r.outcome.verdict == "passed"] == ["needs"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_package("my-method", tmp_path)
    path = tmp_path / "my-method" / "my_method.py"
    path.write_text("mine")
    with pytest.raises(PluginError, match="my-method exists already, so nothing was written"):
        write_package("my-method", tmp_path)
    assert path.read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert write_package("empty", tmp_path)


def test_command_writes_a_package_whose_name_is_free(run: Run) -> None:
    code, out, _ = run("methods", "new", "my-method")
    assert code == 0
    assert out.splitlines()[:2] == ["my-method/pyproject.toml", "my-method/README.md"]
    assert "pip install -e . pytest && pytest" in out
    code, _, err = run("methods", "new", "my-method")
    assert code == 2
    assert "my-method exists already, so nothing was written" in err
    code, out, _ = run("methods", "check", "--plugin", "my-method/my_method.py", "--only", "needs")
    assert code == 0
    code, _, err = run("methods", "new", "my-method", "--out", "elsewhere")
    assert code == 2
    assert "method 'my-method' is offered by my_method.py" in err
    code, _, err = run("methods", "new", "npo")
    assert code == 2
    assert "method 'npo' is offered by unlearnbench" in err
