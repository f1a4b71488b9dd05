"""A release: what is built holds all it needs, and what workflows, image and pages name exists."""

from __future__ import annotations

import importlib
import io
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in ROOT.glob(".github/*/*.yml")}

TRACKED = ["unlearnbench/a.py", "configs/b.yaml", "tests/test_a.py", "docs/index.md", "README.md"]
IN_WHEEL = {"unlearnbench/a.py", "unlearnbench_configs/b.yaml"}


def script(name: str) -> Any:
    """A module of `.ci/`, which `make` runs as a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def release() -> Any:
    """The module that `make release` runs."""
    return script("release")


@pytest.fixture(scope="module")
def try_wheel() -> Any:
    """The module that `make try-wheel` runs."""
    return script("try_wheel")


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


def test_a_release_has_a_dated_section_of_the_changelog(release: Any) -> None:
    filled = "## 1.2.0 – 2026-01-31\n\nNew.\n\n## 1.1.0 – 2025-01-01\n"
    for text in (f"# C\n\n{filled}", f"# C\n\n## Unreleased\n\n{filled}"):
        assert release.check_changelog(text, "1.2.0") == "2026-01-31"
    for text in (
        f"# C\n\n## Unreleased\n\n- more\n\n{filled}",
        "# C\n\n## 1.1.0 – 2026-01-31\n\nNew.\n",
        "# C\n\n## 1.2.0\n\nNew.\n",
        "# C\n\n## 1.2.0 – 2026-01-31\n\n## 1.1.0 – 2025-01-01\n\nOld.\n",
        "# C\n",
    ):
        with pytest.raises(SystemExit, match=r"CHANGELOG\.md: begin with a section '## 1\.2\.0 "):
            release.check_changelog(text, "1.2.0")


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


def test_tests_that_read_the_repository_stay_in_it(try_wheel: Any, tmp_path: Path) -> None:
    try_wheel.copy_tests(tmp_path)
    copied = {path.relative_to(tmp_path) for path in tmp_path.rglob("test_*.py")}
    here = {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    here = {path for path in here if path.parts[1] != "gpu"}
    assert Path("tests/integration/test_release.py") in here - copied
    assert Path("tests/integration/test_end_to_end.py") in copied
    assert len(here - copied) < len(here) / 8
    assert (tmp_path / "tests" / "data" / "old_sweep" / "plan.json").is_file()
    assert all((ROOT / "tests" / name).is_dir() for name in try_wheel.QUICK)


def test_every_extra_is_tried(try_wheel: Any) -> None:
    assert set(try_wheel.EXTRAS) == set(PROJECT["project"]["optional-dependencies"]) - {"dev"}
    assert set(map(normal, try_wheel.TOOLS)) <= set(requirements("dev"))


def test_workflows_run_make_targets_only() -> None:
    lines = [
        (step["run"], job.get("strategy", {}).get("matrix", {}))
        for workflow in WORKFLOWS.values()
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert len(lines) >= 4
    for line, matrix in lines:
        program, *words = line.replace("${{ matrix.target }}", "@").split()
        assert program == "make"
        chosen = [one.split() for one in matrix.get("target", [])] if words == ["@"] else [words]
        assert chosen
        assert all(set(targets) <= TARGETS for targets in chosen)


def test_workflows_cover_every_python_and_name_major_versions_of_actions() -> None:
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    pythons = re.findall(r"Python :: (3\.\d+)$", classifiers, flags=re.MULTILINE)
    assert WORKFLOWS["test.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons
    used = re.findall(r"uses: (.+)", "".join(p.read_text() for p in ROOT.glob(".github/*/*.yml")))
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", one) for one in used)


def test_the_image_is_made_of_what_a_release_makes() -> None:
    text = (ROOT / "Containerfile").read_text()
    steps = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    words = [step.split() for step in steps]
    (copied,) = (step[2:-1] for step in words if step[0] == "COPY")
    assert copied == ["constraints.txt", "dist/unlearnbench-*.whl"]
    assert (ROOT / copied[0]).is_file()
    assert "wheel" in TARGETS
    (extras,) = (
        step[1].partition("=")[2] for step in words if step[:1] == ["ARG"] and "EX" in step[1]
    )
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    users = [step[1] for step in words if step[0] == "USER"]
    assert users == ["unlearnbench"]
    cluster = (ROOT / "cluster.yaml").read_text()
    assert "~/venv/bin/activate" in cluster  # which is in the image, too
    assert "WORKDIR /home/unlearnbench" in steps
    assert any("python3 -m venv venv " in step for step in steps)
    (command,) = (step for step in words if step[0] == "ENTRYPOINT")
    assert yaml.safe_load(" ".join(command[1:])) == [*PROJECT["project"]["scripts"]]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["project"]["license"]
    assert [one["url"].rpartition("/")[2] for one in citation["references"]] == [
        *("2503.01224", "2401.06121")
    ]


def test_the_pages_name_targets_that_exist() -> None:
    for page in ("CONTRIBUTING.md", "docs/release.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        commands = re.findall(r"`make ([a-z -]+?)(?: [A-Z_]+=\S+)?`", text)
        assert commands
        assert {name for line in commands for name in line.split()} <= TARGETS
