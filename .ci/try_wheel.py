"""Try the wheel in dist/ in an empty environment, outside the checkout.

    try_wheel.py tests [--python P] [--constraints FILE] [--quick] [--no-sweep]
    try_wheel.py extras [--python P]

`tests` installs the wheel with its core dependencies, runs the quickstart, installs all extras
and runs the tests that do not read files of the repository, from a copy of tests/. `extras` tries
what each extra is for, once without it and once with it.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import PROJECT, ROOT, VERSION, artifacts

TOOLS = ("hypothesis", "playwright", "pytest", "pytest-timeout", "pytest-xdist")
"""Packages that the tests need besides the extras."""
QUICK = ("contracts/api", "flow/cli", "flow/config", "numbers")
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
RUN = "run short.yaml --select 0"
# A finished run would not need its storage.
EXTRAS = {
    "lora": ("peft", f"{RUN} --set 'models.0.lora={{rank: 4}}'"),
    "8bit": ("bitsandbytes", f"{RUN} --set training.optimizer=adamw-8bit"),
    "s3": ("s3fs", f"{RUN} --set output=remote --set storage=s3://bucket/runs"),
    "gcs": ("gcsfs", f"{RUN} --set output=remote --set storage=gs://bucket/runs"),
    "search": (
        "optuna",
        "sweep short.yaml --force --set name=searched --set 'search={kind: optuna, trials: 2}' "
        "--set 'learning_rates={low: 1.0e-4, high: 1.0e-3}'",
    ),
    "figures": ("kaleido", "figures pareto runs/short --out pareto.svg"),
    "gguf": ("gguf", f"{RUN} --set models.0.base=empty.gguf"),
    "lm-eval": ("lm_eval", "evaluate MODEL --data synthetic --rows 1 --task hellaswag"),
    "wandb": (
        "wandb",
        "sweep short.yaml --force --set name=logged --set tracking.tracker=wandb",
    ),
}
"""The module of each extra, and a command that is refused with the extra's name without it.

Sweeps need `--force`, because the start model has learnt too little to show what a method does.

MODEL stands for the tiny model that the first run has prepared.
"""
UNREACHABLE = ("s3", "gcs", "gguf", "lm-eval")
"""Extras whose commands need a network or a large file; they are imported only."""


class Place:
    """An empty folder with the wheel installed; everything runs there, without the checkout."""

    def __init__(self, folder: Path, python: str, constraints: Path) -> None:
        self.folder, self.constraints = folder, constraints.resolve()
        subprocess.run([python, "-m", "venv", str(folder / "env")], check=True)
        self.install(str(artifacts()[1]))
        code = "import unlearnbench as u; print(u.__file__)"
        if not Path(self.run("python", "-c", code, quiet=True).strip()).is_relative_to(folder):
            sys.exit("try_wheel: the package does not come from the wheel")
        if self.run("unlearnbench", "--version", quiet=True).strip() != VERSION:
            sys.exit(f"try_wheel: the wheel is not of {VERSION}")
        (folder / "short.yaml").write_text(SHORT, encoding="utf-8")
        (folder / "empty.gguf").write_bytes(b"GGUF\3\0\0\0")

    def run(self, command: str, *arguments: str, code: int = 0, quiet: bool = False) -> str:
        """Run a program of the environment; returns its output where `quiet` does not print it."""
        print("$", command, *arguments, flush=True)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        variables.setdefault("WANDB_MODE", "offline")  # without an account
        variables.setdefault("UNLEARNBENCH_SHARED", str(ROOT.parent / "shared"))
        done = subprocess.run(
            [str(self.folder / "env" / "bin" / command), *arguments],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != code:
            sys.exit(f"try_wheel: exit code {done.returncode}, not {code}\n{done.stdout or ''}")
        return done.stdout or ""

    def install(self, *requirements: str) -> None:
        """Install with the constraint file, and check that everything fits together."""
        self.run("pip", "install", "--quiet", "--constraint", str(self.constraints), *requirements)
        self.run("pip", "check", quiet=True)


def try_tests(place: Place, quick: bool, sweep: bool) -> None:
    """Run the quickstart with the core alone, then the tests with all extras."""
    if sweep:
        place.run(
            "unlearnbench", *(("sweep", "short.yaml", "--force") if quick else ("quickstart",))
        )
        if not [*place.folder.glob("runs/*/report.html")]:
            sys.exit("try_wheel: the sweep has written no page")
    place.install(f"{artifacts()[1]}[{','.join(EXTRAS)}]", *TOOLS)
    copy_tests(place.folder)
    folders = [f"tests/{name}" for name in QUICK] if quick else ["tests"]
    workers = ("--numprocesses", "logical", "--maxprocesses", "8", "--dist", "loadfile")
    # Old versions of libraries leave files open; only today's have to be clean.
    oldest = place.constraints != ROOT / "constraints.txt"
    lenient = ("-W", "ignore::ResourceWarning") if oldest else ()
    place.run("python", "-m", "pytest", "-q", *lenient, *workers, *folders)


def copy_tests(folder: Path) -> None:
    """Copy the tests, without those that read files of the repository.

    They find it as a parent of their own folder: `Path(__file__).parents[2]` of tests/flow/cli/.
    """
    ignored = shutil.ignore_patterns("__pycache__", "gpu")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    # Some tests compare with the plain evaluator that the measurements of speed compare with.
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
    for path in (folder / "tests").rglob("test_*.py"):
        depth = len(path.relative_to(folder / "tests").parts)
        text = path.read_text(encoding="utf-8")
        steps = re.findall(r"__file__\)(?:\.resolve\(\))?\.parents\[(\d)\]", text)
        if any(int(step) >= depth for step in steps):
            path.unlink()


def try_extras(place: Place) -> None:
    """Try each extra's command without it, where it has to name the extra, and with it."""
    place.run("unlearnbench", *RUN.split(), quiet=True)
    model = str(next(place.folder.glob("runs/cache/**/model.safetensors")).parent)
    for name, (module, written) in EXTRAS.items():
        command = written.replace("MODEL", model)
        text = place.run("unlearnbench", *shlex.split(command), code=2, quiet=True)
        if f"pip install 'unlearnbench[{name}]'" not in text or "Traceback" in text:
            sys.exit(f"try_wheel: without the extra {name}, no line names it:\n{text}")
        place.install(f"{artifacts()[1]}[{name}]")
        place.run("python", "-c", f"import {module}")
        if name not in UNREACHABLE:
            place.run("unlearnbench", *shlex.split(command), quiet=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tests", "extras"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--quick", action="store_true", help="a short sweep, a part of the tests")
    parser.add_argument("--no-sweep", action="store_true")
    options = parser.parse_args()
    if missing := set(PROJECT["project"]["optional-dependencies"]) - {"dev", *EXTRAS}:
        sys.exit(f"try_wheel: extras that are not tried: {sorted(missing)}")
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as name:
        place = Place(Path(name), options.python, options.constraints)
        if options.what == "extras":
            try_extras(place)
        else:
            try_tests(place, options.quick, not options.no_sweep)
