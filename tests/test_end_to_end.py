"""The command line as a person uses it: a sweep, killed and resumed, with a plugin from outside.

Every sweep here is the real path with nothing replaced: synthetic data, a model trained here,
Ray, MLflow's SQLite, the report.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFIG = """
name: small
data: {source: synthetic, authors: 4, questions_per_author: 3, pretraining_authors: 1}
models:
  - name: tiny
    base: tiny
    architecture:
      {vocabulary: 400, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32, context: 256}
    preparation:
      {epochs: 1, base_epochs: 1, optimizer: muon, learning_rate: 3.0e-3, batch_size: 16}
forget_fractions: [0.5]
methods: [ce-u, npo, outside]
learning_rates: [1.0e-4, 1.0e-3]
epochs: 8
training: {batch_size: 4}
evaluation: {rows: 4, max_length: 96}
"""

PLUGIN = '''"""A method from another package."""
from unlearnbench import LossBatch, Method, Needs

class Outside(Method):
    """L = mean_t log p_t"""
    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch):
        return -batch.forget.mean_tokens(batch.forget.cross_entropy())
'''
RUNS, EPOCHS = 6, 8

pytestmark = pytest.mark.slow


def environment(site: Path) -> dict[str, str]:
    """With a package on the path that is installed as pip leaves it: a file and its metadata."""
    info = site / "outside_package-0.1.dist-info"
    if not info.is_dir():
        info.mkdir(parents=True)
        (site / "outside_package.py").write_text(PLUGIN)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: outside-package\nVersion: 0.1\n"
        )
        points = "[unlearnbench.methods]\noutside = outside_package:Outside\n"
        (info / "entry_points.txt").write_text(points)
    return {**os.environ, "PYTHONPATH": str(site), "PYTHONUNBUFFERED": "1"}


def command(*words: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from unlearnbench.cli import main; raise SystemExit(main())",
        *words,
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, and its sweep carried out without disturbance."""
    place = tmp_path_factory.mktemp("sweeps")
    (place / "small.yaml").write_text(CONFIG)
    done = subprocess.run(
        command("sweep", "small.yaml"),
        cwd=place,
        env=environment(place / "site"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{RUNS} runs, all finished" in done.stdout
    return place


def test_a_sweep_leaves_what_the_readme_says(undisturbed: Path) -> None:
    folder = undisturbed / "runs" / "small"
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert len(rows) == RUNS * EPOCHS + 2, "a row per run and epoch, and the two anchors"
    assert {row["method"] for row in rows} == {"ce-u", "npo", "outside", "fine-tuned", "retain"}
    assert all(float(row["model_utility"]) >= 0 for row in rows)
    assert len(list((folder / "records").iterdir())) == RUNS + 2
    assert json.loads((folder / "plan.json").read_text())["name"] == "small"
    page = (folder / "report.html").read_text()
    assert "outside" in page
    with sqlite3.connect(folder / "mlflow.db") as store:
        (count,) = store.execute("select count(*) from runs").fetchone()
    store.close()
    assert count == RUNS + 2 + 1, "a child per record and the parent"


def test_a_plugin_from_outside_is_listed_with_its_package(undisturbed: Path) -> None:
    done = subprocess.run(
        command("methods", "list"),
        env=environment(undisturbed / "site"),
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("outside "))
    assert line.endswith("outside-package 0.1")


def test_a_finished_sweep_is_not_run_again(undisturbed: Path) -> None:
    folder = undisturbed / "runs" / "small"
    before = {path: path.stat().st_mtime_ns for path in (folder / "records").rglob("*")}
    table = (folder / "results.csv").read_bytes()
    done = subprocess.run(
        command("sweep", "small.yaml"),
        cwd=undisturbed,
        env=environment(undisturbed / "site"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{RUNS} runs, all finished" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (folder / "records").rglob("*")} == before
    assert (folder / "results.csv").read_bytes() == table


@pytest.mark.parametrize("victim", ["driver", "worker", "pre-empted"])
def test_a_killed_sweep_ends_with_the_undisturbed_table(
    undisturbed: Path, tmp_path: Path, victim: str
) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    shutil.copytree(undisturbed / "runs" / "cache", tmp_path / "runs" / "cache")
    environ = environment(undisturbed / "site")
    driver = subprocess.Popen(
        command("sweep", "small.yaml"),
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    records = tmp_path / "runs" / "small" / "records"
    state = tmp_path / "runs" / "small" / "state"
    try:
        # Half way: a run has finished an epoch.
        while not list(state.glob("*/progress-*.json")) and driver.poll() is None:
            time.sleep(0.01)
        assert driver.poll() is None, "the sweep ended before anything could be killed"
        if victim == "driver":
            driver.kill()
        elif victim == "pre-empted":
            driver.terminate()
        else:
            for worker in workers_in(tmp_path):  # one of them has begun; another may not have
                os.kill(worker, signal.SIGKILL)
        _, errors = driver.communicate(timeout=200)
    finally:
        driver.kill()
        driver.communicate()
    if victim == "pre-empted":
        assert driver.returncode == 143
        assert "the same command goes on where this one stopped" in errors
        assert not workers_in(tmp_path)
    if victim != "worker":
        assert len(list(records.glob("[0-9a-f]*"))) < RUNS + 2
        again = subprocess.run(
            command("sweep", "small.yaml"),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert again.returncode == 0, again.stderr
    else:
        assert driver.returncode == 0, errors
        assert "killed" in errors, "a death is told"
    cut = [
        interruption
        for file in records.glob("*/record.json")
        for interruption in json.loads(file.read_text())["provenance"].get("interruptions", [])
    ]
    assert cut
    if victim == "pre-empted":
        assert {one["what"] for one in cut} == {"SIGTERM"}
    mine = (tmp_path / "runs" / "small" / "results.csv").read_text()
    assert mine == (undisturbed / "runs" / "small" / "results.csv").read_text()


def workers_in(folder: Path) -> list[int]:
    """Process ids of Ray's trial workers whose sweep lies in `folder`."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_text()
            place = (process / "cwd").readlink()
        except OSError:  # gone in the meantime
            continue
        if name.startswith("ray::") and "Trainable" in name and place == folder:
            found.append(int(process.name))
    return found
