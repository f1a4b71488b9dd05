"""A release: what is built holds all it needs."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


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


BY_READING = ("huggingface-hub", "huggingface_hub", "tokenizers", "torch", "transformers")
"""Bounds of GPU machines without a network, lower than what `make oldest` can install."""


def test_every_lower_bound_is_a_version_that_was_tested() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev"}
    oldest, newest = pins("constraints-oldest.txt"), pins("constraints.txt")
    for name, bound in requirements(*extras).items():
        version, given = oldest[name].split("."), bound.split(".")
        if name in BY_READING:
            assert [*map(int, given)] <= [*map(int, version)], name
            continue
        assert version[: len(given)] == given, name
        assert set(version[len(given) :]) <= {"0"}, name
        assert name in newest, name


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
