"""A package that somebody else could publish is built, installed, and used like a built-in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.small_sweep import SMALL_MODEL
from tests.factories.tables import read_csv

SOURCES = Path(__file__).parents[2] / "third_party" / "plateau"
PRIVATE = ("unlearnbench.config", "unlearnbench.evaluation", "unlearnbench.runs", "._")
CONFIG = (
    SMALL_MODEL
    + """
methods: [plateau]
attacks: {polite: {}}
learning_rates: [1.0e-3]
epochs: 1
evaluation: {max_length: 96, metrics: {first-word: {}}}
"""
)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package, from a copy of its sources."""
    place = tmp_path_factory.mktemp("outside")
    shutil.copytree(SOURCES, place / "sources")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The dependency is this project, and the package index may not be in reach.
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*pip, *offline, "--target", str(place / "site"), str(place / "sources")], check=True
    )
    return place / "site"


def run(site: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of Python as a user who has installed the package."""
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("kind", "name"), [("methods", "plateau"), ("metrics", "first-word"), ("attacks", "polite")]
)
def test_each_kind_is_listed_and_conforms(kind: str, name: str, site: Path, tmp_path: Path) -> None:
    listed = run(site, "unlearnbench", kind, "list", "--json", cwd=tmp_path)
    assert name in listed.stdout, listed.stderr
    checked = run(site, "unlearnbench", kind, "check", name, cwd=tmp_path)
    assert (checked.returncode, "no fault" in checked.stdout) == (0, True), checked.stdout


def test_its_own_tests_pass(site: Path) -> None:
    done = run(site, "pytest", "-q", "-p", "no:cacheprovider", cwd=site.parent / "sources")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_run_uses_all_three(site: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    done = run(site, "unlearnbench", "run", "small.yaml", "--select", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reported = run(site, "unlearnbench", "report", "runs/small", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    folder = tmp_path / "runs" / "small"
    results = read_csv(folder / "results.csv")
    (trained,) = [row for row in results if row["method"] == "plateau"]
    assert 0 <= float(trained["first_word_forget"]) <= 1
    attacked = read_csv(folder / "attacks.csv")
    assert "plateau" in {row["method"] for row in attacked if row["variant"] == "polite"}


def test_it_imports_public_names_only() -> None:
    imports = [
        line
        for path in SOURCES.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert not [line for line in imports if any(name in line for name in PRIVATE)]
