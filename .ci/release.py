"""Check that a release is ready, build its distributions, tag it: `make release`, `make wheel`.

docs/release.md describes the steps; try_wheel.py tries what was built.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from datetime import date
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
"""What a source distribution holds besides the packages."""


class ReleaseError(Exception):
    """A release that is not ready, or does not work."""


def git(*arguments: str) -> str:
    """The output of a git command in the checkout."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check_state() -> None:
    """Check the tree, the branch, the tag and the changelog."""
    if changed := git("status", "--porcelain"):
        raise ReleaseError(f"commit or remove what is not in HEAD:\n{changed}")
    if git("tag", "--list", TAG):
        if git("rev-parse", f"{TAG}^{{commit}}") != git("rev-parse", "HEAD"):
            raise ReleaseError(f"{TAG} is the tag of another commit; raise the version")
    elif (branch := git("branch", "--show-current")) != "main":
        raise ReleaseError(f"releases are made on main; this is {branch or 'a detached HEAD'}")
    day = check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), VERSION)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    for line in (f"version: {VERSION}", f"date-released: {day}"):
        if line not in citation:
            raise ReleaseError(f"CITATION.cff: write '{line}'")


def check_changelog(text: str, version: str) -> str:
    """Check that the newest section is that of `version` and not empty; returns its date."""
    sections = re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", text, flags=re.MULTILINE)
    if sections and sections[0][0] == "Unreleased" and sections.pop(0)[1].strip():
        raise ReleaseError(f"CHANGELOG.md: move what is under Unreleased to {version}")
    title, content = sections[0] if sections else ("", "")
    found, _, day = title.partition(" – ")
    if found != version:
        raise ReleaseError(f"CHANGELOG.md: the first section is {title!r}, not {version}")
    try:
        date.fromisoformat(day)
    except ValueError:
        raise ReleaseError(f"CHANGELOG.md: write '## {version} – YYYY-MM-DD'") from None
    if not content.strip():
        raise ReleaseError(f"CHANGELOG.md: the section {title!r} is empty")
    return day


def build() -> None:
    """Build both distributions from the files of HEAD alone, with the tools of this Python.

    No isolated environment is made for the build: the constraint file has pinned setuptools
    already, and nothing is fetched.
    """
    for old in DIST.glob("unlearnbench-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder, "head")
        git("archive", "--output", f"{folder}/head.tar", "HEAD")
        with tarfile.open(f"{folder}/head.tar") as archive:
            archive.extractall(head, filter="data")
        command = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            str(DIST),
            str(head),
        ]
        # The time of the commit: a commit makes the same files whenever it is built.
        variables = os.environ | {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
        done = subprocess.run(command, cwd=head, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"the build failed:\n{done.stdout}{done.stderr}")
    check_contents(*artifacts(), git("ls-files").splitlines())


def artifacts() -> tuple[Path, Path]:
    """The source distribution and the wheel of this version in dist/."""
    found = [sorted(DIST.glob(f"unlearnbench-{VERSION}{end}")) for end in (".tar.gz", "-*.whl")]
    if any(len(files) != 1 for files in found):
        raise ReleaseError(f"{DIST} has no sdist and wheel of {VERSION}: run make wheel")
    return found[0][0], found[1][0]


def check_contents(sdist: Path, wheel: Path, tracked: Iterable[str]) -> None:
    """Compare what the distributions hold with what git tracks: nothing less, nothing more."""
    packages = {
        folder: name for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()
    }
    sources = [path.partition("/") for path in tracked if path.partition("/")[0] in packages]
    with zipfile.ZipFile(wheel) as packed:
        files = {name for name in packed.namelist() if ".dist-info/" not in name}
    _compare(wheel, files, {f"{packages[top]}/{rest}" for top, _, rest in sources})
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    files = {name for name in files if ".egg-info/" not in name} - {"PKG-INFO", "setup.cfg"}
    _compare(sdist, files, {f"{top}/{rest}" for top, _, rest in sources} | BESIDE)
    print(f"{wheel.name}, {sdist.name}: {len(sources)} files of the packages each")


def _compare(archive: Path, found: set[str], wanted: set[str]) -> None:
    missing, further = sorted(wanted - found), sorted(found - wanted)
    if missing or further:
        raise ReleaseError(f"{archive.name}: missing {missing}, not wanted {further}")


def tag() -> None:
    """Tag HEAD with the version."""
    if not git("tag", "--list", TAG):
        git("tag", "--annotate", TAG, "--message", f"unlearnbench {VERSION}")
    print(f"{TAG} is {git('rev-parse', '--short', 'HEAD')}; publish it: git push origin main {TAG}")


STEPS = {"check": check_state, "build": build, "tag": tag}


def main(steps: Sequence[str]) -> int:
    """Take the steps in order; returns the exit code."""
    try:
        for step in steps:
            STEPS[step]()
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
