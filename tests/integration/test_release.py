"""A release: what is built holds all it needs."""

from __future__ import annotations

import importlib
import io
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())

TRACKED = ["unlearnbench/a.py", "configs/b.yaml", "tests/test_a.py", "docs/index.md", "README.md"]
IN_WHEEL = {"unlearnbench/a.py", "unlearnbench_configs/b.yaml"}


@pytest.fixture(scope="module")
def release() -> Any:
    """The module of `.ci/` that `make release` runs as a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module("release")


def requirements(*groups: str) -> dict[str, str]:
    """Lower bounds by the name of the package."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(one for group in groups for one in extras[group])]
    pairs = (line.split(">=") for line in lines)
    return {normal(name.split("[")[0]): bound for name, bound in pairs}


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normal(package): version for package, version in pairs}


def test_every_lower_bound_is_a_version_that_was_tested() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev"}
    oldest, newest = pins("constraints-oldest.txt"), pins("constraints.txt")
    for name, bound in requirements(*extras).items():
        version, given = oldest[name].split("."), bound.split(".")
        assert version[: len(given)] == given, name
        assert set(version[len(given) :]) <= {"0"}, name
        assert name in newest, name


def packed(folder: Path, release: Any, wheel: set[str], further: str = "") -> tuple[Path, Path]:
    """Distributions of TRACKED: the wheel with these files, the sdist with one more."""
    paths = folder / "a.tar.gz", folder / "a.whl"
    with zipfile.ZipFile(paths[1], "w") as archive:
        for name in (*wheel, "unlearnbench-1.dist-info/METADATA"):
            archive.writestr(name, "")
    names = {"unlearnbench/a.py", "configs/b.yaml", *release.BESIDE, "PKG-INFO", "setup.cfg"}
    with tarfile.open(paths[0], "w:gz") as archive:
        for name in names | ({further} if further else set()):
            archive.addfile(tarfile.TarInfo(f"unlearnbench-1/{name}"), io.BytesIO())
    return paths


def test_a_distribution_holds_what_git_tracks_of_the_packages(release: Any, tmp_path: Path) -> None:
    release.check_contents(*packed(tmp_path, release, IN_WHEEL), TRACKED)
    for wheel, further, problem in (
        (IN_WHEEL - {"unlearnbench_configs/b.yaml"}, "", r"a\.whl: missing .*b\.yaml"),
        (IN_WHEEL | {"tests/test_a.py"}, "", r"a\.whl: .* not wanted .*test_a"),
        (IN_WHEEL, "docs/index.md", r"a\.tar\.gz: .* not wanted .*index"),
    ):
        with pytest.raises(SystemExit, match=problem):
            release.check_contents(*packed(tmp_path, release, wheel, further), TRACKED)


def test_every_file_of_the_packages_is_installed(release: Any) -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    for package, folder in setuptools["package-dir"].items():
        files = [
            path.relative_to(ROOT / folder)
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in {".py", ".pyc"}
        ]
        patterns = setuptools["package-data"].get(package, [])
        left = [path for path in files if not any(path.match(one) for one in patterns)]
        assert left == [], package
        assert all(any(path.match(one) for path in files) for one in patterns), package
    assert all((ROOT / name).is_file() for name in release.BESIDE)
