"""The package that `methods new` writes passes its own tests once it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unlearnbench import registry
from unlearnbench.errors import PluginError
from unlearnbench.scaffold import write_package
from unlearnbench.testing import check_method


def python(*args: str, folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *args], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_it_passes_its_own_tests_once_installed(tmp_path: Path) -> None:
    files = write_package("my-method", tmp_path)
    folder, site = files[0].parent, tmp_path / "site"
    assert {str(f.relative_to(folder)) for f in files} == {
        "pyproject.toml",
        "README.md",
        "my_method.py",
        "tests/test_my_method.py",
    }
    how = ("--no-deps", "--no-build-isolation", "--quiet", "--target", str(site))
    done = python("-m", "pip", "install", *how, ".", folder=folder, site=site)
    assert done.returncode == 0, done.stderr
    done = python("-m", "pytest", "-q", "-W", "error", folder=folder, site=site)
    assert done.returncode == 0, done.stdout
    assert "24 passed, 3 skipped" in done.stdout  # it has no reference and no retain rows
    done = python(
        "-m", "unlearnbench.cli", "methods", "show", "my-method", folder=folder, site=site
    )
    assert "my-method  (unlearnbench-my-method 0.1.0, my_method:MyMethod)" in done.stdout


def test_its_file_is_a_plugin_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_files", {})
    write_package("softer-ascent-2", tmp_path)
    name = registry.register_file(tmp_path / "softer-ascent-2" / "softer_ascent_2.py")
    assert name == "softer-ascent-2"
    assert registry.load_method(name).__name__ == "SofterAscent2"
    results = check_method(name)
    assert {r.check.name for r in results if r.outcome.verdict != "passed"} == {
        "reference",
        "references",
        "balance",
    }


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_package("my-method", tmp_path)
    path = tmp_path / "my-method" / "my_method.py"
    path.write_text("mine")
    with pytest.raises(PluginError, match="my-method is there already; nothing was written"):
        write_package("my-method", tmp_path)
    assert path.read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert write_package("empty", tmp_path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MyMethod", "; try 'my-method'"),
        ("my_method", "; try 'my-method'"),
        ("my method", "; try 'my-method'"),
        ("2fast", ""),
        ("-x", "; try 'x'"),
        ("", ""),
        ("class", ""),
        ("../up", "; try 'up'"),
        ("größe", ""),
    ],
)
def test_bad_names_are_refused_with_a_better_one(name: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="is no name for a method") as caught:
        write_package(name, tmp_path)
    assert str(caught.value).endswith(f"no word of Python{hint}") or not hint
    assert not list(tmp_path.iterdir())
