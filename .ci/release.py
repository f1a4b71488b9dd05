"""Check that a release is ready, build its distributions, tag it: `make release`, `make wheel`.

docs/develop/release.md describes the steps; try_wheel.py tries what was built.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = PROJECT["project"]["version"]
TAG = f"v{VERSION}"
BESIDE = {
    *("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md"),
    *("constraints.txt", "constraints-oldest.txt", "pyproject.toml"),
}
"""Files of a source distribution besides the packages."""


def git(*arguments: str) -> str:
    """The output of a git command in the checkout."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check_state() -> None:
    """Check the tree, the branch, the tag, the changelog and the citation."""
    if changed := git("status", "--porcelain"):
        sys.exit(f"release: commit or remove what is not in HEAD:\n{changed}")
    if git("tag", "--list", TAG):
        if git("rev-parse", f"{TAG}^{{commit}}") != git("rev-parse", "HEAD"):
            sys.exit(f"release: {TAG} is the tag of another commit; raise the version")
    elif (branch := git("branch", "--show-current")) != "main":
        sys.exit(f"release: releases are made on main; this is {branch or 'a detached HEAD'}")
    day = check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), VERSION)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    for line in (f"version: {VERSION}", f"date-released: {day}"):
        if line not in citation:
            sys.exit(f"release: CITATION.cff: write '{line}'")


def check_changelog(text: str, version: str) -> str:
    """Check that the newest section is of `version`, dated and not empty; returns its date."""
    text = re.sub(r"^## Unreleased\n\s*(?=## )", "", text, flags=re.MULTILINE)
    title, _, content = text.partition("\n## ")[2].partition("\n")
    found = re.fullmatch(rf"{re.escape(version)} – (\d{{4}}-\d\d-\d\d)", title)
    if not found or not content.partition("\n## ")[0].strip():
        sys.exit(f"release: CHANGELOG.md: begin with a section '## {version} – YYYY-MM-DD'")
    return found[1]


def build() -> None:
    """Build both distributions from the files of HEAD alone, with the tools of this Python.

    No isolated environment is made for the build: the constraint file has pinned setuptools
    already, and nothing is fetched.
    """
    for old in DIST.glob("unlearnbench-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        git("archive", "--output", f"{folder}/head.tar", "HEAD")
        with tarfile.open(f"{folder}/head.tar") as archive:
            archive.extractall(f"{folder}/head", filter="data")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST)]
        # The time of the commit: a commit makes the same files whenever it is built.
        variables = os.environ | {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
        subprocess.run([*command, f"{folder}/head"], env=variables, check=True)
    check_contents(*artifacts(), git("ls-files").splitlines())


def artifacts() -> tuple[Path, Path]:
    """The source distribution and the wheel of this version in dist/."""
    files = [*DIST.glob(f"unlearnbench-{VERSION}.tar.gz"), *DIST.glob(f"unlearnbench-{VERSION}-*")]
    if len(files) != 2:
        sys.exit(f"release: {DIST} has no sdist and wheel of {VERSION}: run make wheel")
    return files[0], files[1]


def check_contents(sdist: Path, wheel: Path, tracked: list[str]) -> None:
    """Compare what the distributions hold with what git tracks: nothing less, nothing more."""
    folders = PROJECT["tool"]["setuptools"]["package-dir"].items()
    installed = {top: package for package, top in folders}
    sources = {path for path in tracked if path.partition("/")[0] in installed}
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {name for name in packed.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        names = (member.name.partition("/")[2] for member in archive if member.isfile())
        in_sdist = {name for name in names if ".egg-info/" not in name} - {"PKG-INFO", "setup.cfg"}
    moved = {installed[top] + "/" + rest for top, _, rest in (p.partition("/") for p in sources)}
    for file, found, wanted in ((wheel, in_wheel, moved), (sdist, in_sdist, sources | BESIDE)):
        if found != wanted:
            differ = f"missing {sorted(wanted - found)}, not wanted {sorted(found - wanted)}"
            sys.exit(f"release: {file.name}: {differ}")


def tag() -> None:
    """Tag HEAD with the version."""
    if not git("tag", "--list", TAG):
        git("tag", "--annotate", TAG, "--message", f"unlearnbench {VERSION}")
    print(f"{TAG} is {git('rev-parse', '--short', 'HEAD')}; publish it: git push origin main {TAG}")


STEPS = {"check": check_state, "build": build, "tag": tag}

if __name__ == "__main__":
    for step in sys.argv[1:]:
        STEPS[step]()
