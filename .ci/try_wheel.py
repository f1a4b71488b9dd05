"""Try the wheel in dist/ in an empty environment, outside the checkout.

    try_wheel.py tests [--python P] [--constraints FILE] [--quick] [--no-sweep]
    try_wheel.py extras [--python P]

`tests` installs the wheel with its core dependencies, runs the quickstart, installs all extras
and runs the tests that do not read files of the repository, from a copy of tests/. `extras` tries
what each extra is for, once without it and once with it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from release import PROJECT, ROOT, VERSION, ReleaseError, artifacts

TOOLS = ("hypothesis", "playwright", "pytest", "pytest-timeout", "pytest-xdist")
"""What the tests need besides the extras."""

QUICK = ("api", "cli", "config", "files", "losses", "methods", "metrics", "stats", "training")
"""The folders of tests that run with --quick."""

SHORT = """\
name: short
data: {source: synthetic, authors: 20}
forget_fractions: [0.2]
models:
  - name: tiny
    base: tiny
    architecture: {vocabulary: 512, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
    preparation: {epochs: 1, base_epochs: 1}
methods: [ce-u, {method: npo, retain: {term: nll}}]
learning_rates: [1.0e-3]
seeds: [0]
epochs: 1
evaluation: {max_length: 64, rows: 8}
"""
"""Two runs of an epoch, of a model that has learnt next to nothing."""


@dataclass(frozen=True)
class Place:
    """An empty folder with an environment; everything runs there, without the checkout's paths."""

    folder: Path
    constraints: Path

    def run(self, command: str, *arguments: str, code: int = 0, quiet: bool = False) -> str:
        """Run a program of the environment; returns its output. Raises: for another exit code.

        quiet  keep the output, in place of printing it
        """
        words = [str(self.folder / "env" / "bin" / command), *arguments]
        print("$", command, *arguments, flush=True)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        variables.setdefault("UNLEARNBENCH_SHARED", str(ROOT.parent / "shared"))
        output = subprocess.PIPE if quiet else None
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != code:
            raise ReleaseError(f"exit code {done.returncode}, not {code}\n{done.stdout or ''}")
        return done.stdout or ""

    def install(self, *requirements: str) -> None:
        """Install with the constraint file, and check that everything fits together."""
        self.run("pip", "install", "--quiet", "--constraint", str(self.constraints), *requirements)
        self.run("pip", "check", quiet=True)


def make_place(folder: Path, python: str, constraints: Path) -> Place:
    """Make an environment with nothing but the wheel and what it depends on."""
    wheel = artifacts()[1]
    subprocess.run([python, "-m", "venv", str(folder / "env")], check=True)
    place = Place(folder, constraints.resolve())
    place.install(str(wheel))
    if place.run("unlearnbench", "--version", quiet=True).strip() != VERSION:
        raise ReleaseError(f"the wheel is not of {VERSION}")
    where = place.run("python", "-c", "import unlearnbench as u; print(u.__file__)", quiet=True)
    if not Path(where.strip()).is_relative_to(folder):
        raise ReleaseError(f"the package comes from {where.strip()}, not from the wheel")
    return place


def try_tests(place: Place, quick: bool, sweep: bool) -> None:
    """Run the quickstart with the core alone, then the tests with all extras."""
    if sweep and quick:
        (place.folder / "short.yaml").write_text(SHORT, encoding="utf-8")
        place.run("unlearnbench", "sweep", "short.yaml")
    elif sweep:
        place.run("unlearnbench", "quickstart")
    if sweep and not [*place.folder.glob("runs/*/report.html")]:
        raise ReleaseError("the sweep has written no page")
    extras = sorted(set(PROJECT["project"]["optional-dependencies"]) - {"dev"})
    place.install(f"{artifacts()[1]}[{','.join(extras)}]", *TOOLS)
    left = copy_tests(place.folder)
    folders = [f"tests/{name}" for name in QUICK] if quick else ["tests"]
    workers = ("--numprocesses", "logical", "--maxprocesses", "8", "--dist", "loadfile")
    # Old versions of libraries leave files open; only today's have to be clean.
    oldest = place.constraints != ROOT / "constraints.txt"
    lenient = ("-W", "ignore::ResourceWarning") if oldest else ()
    place.run("python", "-m", "pytest", "-q", *lenient, *workers, *folders)
    print(f"{left} files of tests read the repository and are left out")


def copy_tests(folder: Path) -> int:
    """Copy the tests, without those that read files of the repository; returns how many those are.

    They find it as a parent of their own folder: `Path(__file__).parents[2]` of tests/cli/.
    """
    ignored = shutil.ignore_patterns("__pycache__", "gpu")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
    left = 0
    for path in (folder / "tests").rglob("test_*.py"):
        depth = len(path.relative_to(folder / "tests").parts)
        steps = re.findall(
            r"__file__\)(?:\.resolve\(\))?\.parents\[(\d)\]", path.read_text("utf-8")
        )
        if any(int(step) >= depth for step in steps):
            path.unlink()
            left += 1
    return left


@dataclass(frozen=True)
class Extra:
    """What an extra is for."""

    modules: tuple[str, ...]
    command: tuple[str, ...]
    """Is refused with the extra's name where the extra is missing."""
    works: bool = True
    """Whether the command succeeds with the extra; object stores cannot be reached from here."""
    program: str = "unlearnbench"


READ_BOARD = """
import sys
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.reporting.leaderboard.dataset import leaderboard_dataset
try:
    print(leaderboard_dataset(sys.argv[1]))
except UnlearnbenchError as error:
    print(error)
    sys.exit(2)
"""
ELSEWHERE = ("--set", "output=remote")  # a finished run would not need its storage

EXTRAS = {
    "lora": Extra(("peft",), ("run", "short.yaml", "--set", "models.0.lora={rank: 4}")),
    "8bit": Extra(
        ("bitsandbytes",), ("run", "short.yaml", "--set", "training.optimizer=adamw-8bit")
    ),
    "s3": Extra(
        ("s3fs",),
        ("run", "short.yaml", "--set", "storage=s3://bucket/runs", *ELSEWHERE),
        works=False,
    ),
    "gcs": Extra(
        ("gcsfs",),
        ("run", "short.yaml", "--set", "storage=gs://bucket/runs", *ELSEWHERE),
        works=False,
    ),
    "search": Extra(
        ("optuna",),
        (
            *("sweep", "short.yaml", "--set", "search={kind: optuna, trials: 2}"),
            *("--set", "learning_rates={low: 1.0e-4, high: 1.0e-3}", "--set", "name=searched"),
        ),
    ),
    "figures": Extra(("kaleido",), ("figures", "pareto", "runs/short", "--out", "pareto.svg")),
    "datasets": Extra(
        ("datasets",),
        ("-c", READ_BOARD, str(ROOT / "tests" / "reporting" / "leaderboard" / "schema-1.jsonl")),
        program="python",
    ),
}


def try_extras(place: Place) -> None:
    """Try each extra's command without it, where it has to name the extra, and with it."""
    if missing := set(PROJECT["project"]["optional-dependencies"]) - {"dev", *EXTRAS}:
        raise ReleaseError(f"extras that are not tried: {sorted(missing)}")
    (place.folder / "short.yaml").write_text(SHORT, encoding="utf-8")
    place.run("unlearnbench", "run", "short.yaml", "--select", "0", quiet=True)
    for name, extra in EXTRAS.items():
        command = [*extra.command, *(("--select", "0") if extra.command[0] == "run" else ())]
        text = place.run(extra.program, *command, code=2, quiet=True)
        if f"pip install 'unlearnbench[{name}]'" not in text or "Traceback" in text:
            raise ReleaseError(f"without the extra {name}, no line names it:\n{text}")
        place.install(f"{artifacts()[1]}[{name}]")
        place.run("python", "-c", f"import {', '.join(extra.modules)}")
        if extra.works:
            place.run(extra.program, *command, quiet=True)


def main(arguments: Sequence[str]) -> int:
    """Try the wheel; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tests", "extras"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--quick", action="store_true", help="a short sweep, a part of the tests")
    parser.add_argument("--no-sweep", action="store_true")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="unlearnbench-") as folder:
            place = make_place(Path(folder), options.python, options.constraints)
            if options.what == "extras":
                try_extras(place)
            else:
                try_tests(place, options.quick, not options.no_sweep)
    except ReleaseError as error:
        print(f"try_wheel: {error}", file=sys.stderr)
        return 1
    print(f"The wheel works ({options.what}): {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
