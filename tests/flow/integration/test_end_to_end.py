"""The command line as a person uses it: a sweep, stopped and resumed, with a plugin from outside.

Every sweep here is the real path with nothing replaced: synthetic data, a model trained here,
Ray, MLflow's SQLite, the report.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.factories.marks import WITH_MLFLOW
from tests.factories.small_sweep import SMALL_MODEL
from tests.factories.tables import read_csv
from unlearnbench.cli.main import main
from unlearnbench.results.records import read_records

from ...warm_ray import warm_workers

CONFIG = (
    SMALL_MODEL
    + """
methods: [outside, npo]
learning_rates: [1.0e-3]
epochs: 3
evaluation: {rows: 4, max_length: 96}
ray: {concurrent: 1}
"""
)

PLUGIN = '''"""A method from another package: slow after an epoch, while there is a file `hold`."""
import itertools, pathlib, time
from unlearnbench import LossBatch, Method, Needs

steps = itertools.count(1)

class Outside(Method):
    """L = mean_t log p_t"""
    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch):
        if next(steps) > 2 and pathlib.Path("hold").exists():
            time.sleep(1)
        return -batch.forget.mean_tokens(batch.forget.cross_entropy())
'''
SWEEP = ["sweep", "small.yaml", "--force"]
"""The model is hardly trained, so that the sweep would stop before its first run."""
RUNS, EPOCHS = 2, 3
pytestmark = [pytest.mark.long, *WITH_MLFLOW]


def install(site: Path) -> None:
    """Put a package into a folder: a file and its metadata, as pip installs them."""
    info = site / "outside_package-0.1.dist-info"
    if not info.is_dir():
        info.mkdir(parents=True)
        (site / "outside_package.py").write_text(PLUGIN)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: outside-package\nVersion: 0.1\n"
        )
        points = "[unlearnbench.methods]\noutside = outside_package:Outside\n"
        (info / "entry_points.txt").write_text(points)


@pytest.fixture(scope="module")
def stopped_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and its sweep, cut short by a SIGTERM, then finished.

    Both commands run in this process, which has imported what they need: a thread watches the
    folder, and sends the signal.
    """
    place = tmp_path_factory.mktemp("sweeps")
    (place / "small.yaml").write_text(CONFIG)
    folder = place / "runs" / "small"
    errors = StringIO()

    with in_this_process(place), warm_workers():
        with Interruption(place, folder) as interruption, redirect_stderr(errors):
            assert main(SWEEP) == 143
        assert time.monotonic() - interruption.sent < 15, "stopped within seconds"
        assert "the same command resumes where this one stopped" in errors.getvalue()
        assert not processes_of_ray(place)
        assert not [x for x in read_records(folder) if x.status == "failed"]
        assert len(list((folder / "records").glob("[0-9a-f]*"))) < RUNS + 2
        assert main(SWEEP) == 0
    return place


def test_a_sweep_that_is_stopped_ends_with_the_undisturbed_table(
    stopped_sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped_sweep / "runs" / "small"
    (tmp_path / "small.yaml").write_text(CONFIG)
    with in_this_process(tmp_path):
        for position in range(RUNS):
            assert main(["run", "small.yaml", "--select", str(position)]) == 0
        assert main(["report", "runs/small"]) == 0
    capsys.readouterr()
    undisturbed = tmp_path / "runs" / "small"
    assert (folder / "results.csv").read_text() == (undisturbed / "results.csv").read_text()


def test_a_sweep_writes_the_files_that_the_readme_lists(stopped_sweep: Path) -> None:
    folder = stopped_sweep / "runs" / "small"
    rows = read_csv(folder / "results.csv")
    assert len(rows) == RUNS * EPOCHS + 2, "a row per run and epoch, and the two reference models"
    assert {row["method"] for row in rows} == {"npo", "outside", "fine-tuned", "retain"}
    assert all(float(row["model_utility"]) >= 0 for row in rows)
    assert len(list((folder / "records").iterdir())) == RUNS + 2
    assert json.loads((folder / "plan.json").read_text())["name"] == "small"
    page = (folder / "report.html").read_text()
    assert "outside" in page
    with sqlite3.connect(folder / "mlflow.db") as store:
        (count,) = store.execute("select count(*) from runs").fetchone()
    store.close()
    assert count == RUNS + 2 + 1, "a child per record and the parent"


def test_a_finished_sweep_is_not_run_again(
    stopped_sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the command again in this process, which also lists the plugin with its package."""
    folder = stopped_sweep / "runs" / "small"
    before = {path: path.stat().st_mtime_ns for path in (folder / "records").rglob("*")}
    table = (folder / "results.csv").read_bytes()
    with in_this_process(stopped_sweep):
        assert main(SWEEP) == 0
        assert f"{RUNS} runs, all finished" in capsys.readouterr().out
        assert main(["methods", "list", "--wide"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "records").rglob("*")} == before
    assert (folder / "results.csv").read_bytes() == table
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("outside "))
    assert line.endswith("outside-package 0.1")


@contextmanager
def in_this_process(folder: Path) -> Generator[None, None, None]:
    """Commands inside the `with` run in `folder`, with the plugin on the path."""
    install(folder / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(folder / "site"))
        patch.syspath_prepend(str(folder / "site"))
        yield


class Interruption(Thread):
    """Stops the sweep in `folder` after an epoch.

    For use with `with`, in whose thread the sweep runs. The file `hold` keeps the first run from
    ending before the signal arrives.
    """

    def __init__(self, place: Path, folder: Path) -> None:
        super().__init__(daemon=True)
        self.place, self.folder = place, folder
        self.sent = 0.0
        """When the sweep was stopped."""
        self._over = Event()

    def __enter__(self) -> Interruption:
        # A sweep has a handler of its own: this one is for a signal that comes too late.
        self._before = signal.signal(signal.SIGTERM, too_late)
        (self.place / "hold").touch()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        (self.place / "hold").unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, self._before)

    def run(self) -> None:
        while not [*(self.folder / "state").glob("*/state.json")]:  # written after an epoch
            assert not self._over.wait(0.01), "the sweep ended before it could be cut short"
        assert processes_of_ray(self.place)
        self.sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)


def too_late(*_: object) -> None:
    pytest.fail("no sweep was running")


def processes_of_ray(folder: Path) -> list[str]:
    """Names of Ray's workers, at work or not, and agents, whose sweep lies in `folder`."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_text()
            place = (process / "cwd").readlink()
        except OSError:  # gone in the meantime
            continue
        if name.startswith("ray::") and place == folder:
            found.append(name)
    return found
