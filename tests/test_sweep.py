"""Sweeps through a real local Ray, with runs that take no time: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.console import Console
from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.execution import RaySettings, Resources, TrackingSettings
from unlearnbench.ledger import Runtime, SweepResult, Task, last_failure
from unlearnbench.plan import Plan, RunSpec, make_plan
from unlearnbench.records import EpochResult, Record, read_records, write_record
from unlearnbench.settings import (
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.sweep import run_sweep

pytestmark = [
    # MLflow 3.17 asks SQLAlchemy 2.1 for a loader that the latter is about to drop.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    # Its engine leaves connections to the garbage collector, which may come at any test.
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]


def a_config(output: Path, rates: Sequence[float] = (1e-5, 2e-5), **changes: Any) -> SweepConfig:
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1, 0.2),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        learning_rates=tuple(rates),
        epochs=2,
        ray=RaySettings(concurrent=2),
        tracking=TrackingSettings(enabled=False),
        output=str(output),
    )
    return config.model_copy(update=changes)


@dataclass(frozen=True)
class FakeTask:
    """A preparation that leaves a file."""

    id: str
    after: tuple[str, ...] = ()
    done: bool = False
    model: str = "tiny"

    @property
    def label(self) -> str:
        return f"prepare {self.id}"


def fake_runtime(
    marks: Path,
    *,
    behaviour: str = "",
    fail: float = 0.0,
    wrong: float = 0.0,
    leave: float = 0.0,
    die: float = 0.0,
    full: float = 0.0,
    seconds: float = 0.0,
) -> Runtime:
    """Runs that write what they do into `marks`.

    fail       runs at this learning rate fail, as they do where a disk is away
    wrong      they fail as code does that is wrong: each time
    leave      they call `sys.exit(0)` in the second epoch
    die        their process is killed in the second epoch of the first try
    full       their disk takes no more than 100 bytes a file
    behaviour  `unprepared`: preparation fails
    """
    marks.mkdir(exist_ok=True)

    # All of it inside: what lies at the top of a test file cannot be imported by a worker.
    import resource

    def mark(kind: str, name: str) -> int:
        """Note it; returns how often that was noted before."""
        before = len(list(marks.glob(f"{kind}.{name}.*")))
        (marks / f"{kind}.{name}.{before}.{os.getpid()}").touch()
        return before

    def plan(config: SweepConfig) -> Plan:
        return make_plan(config, "data")

    def tasks(_config: SweepConfig, _runs: Sequence[RunSpec], _folder: Path) -> Sequence[Task]:
        names = {"base": (), "full": ("base",), "retain": ("base",)}
        return [FakeTask(k, v, bool(list(marks.glob(f"task.{k}.*")))) for k, v in names.items()]

    def execute(task: FakeTask, _config: SweepConfig, _folder: Path) -> float:
        for name in task.after:
            if not list(marks.glob(f"task.{name}.*")):
                raise RuntimeError(f"{name} is not there")
        if behaviour == "unprepared":
            raise UnlearnbenchError("no tokenizer in ./model")
        mark("task", task.id)
        return 0.25

    def run_epochs(run: RunSpec, _config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        tries = mark("try", run.id)
        results: list[EpochResult] = []
        for epoch in range(1, run.epochs + 1):
            time.sleep(seconds)
            if run.learning_rate == fail:
                raise OSError(f"epoch {epoch} is not for me")
            if run.learning_rate == wrong:
                raise TypeError("a \x1b[31mloss\x1b[0m is no list")
            if run.learning_rate == leave and epoch == 2:
                sys.exit(0)
            if run.learning_rate == die and not tries and epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            metrics = {"model_utility": 0.5, "log10_forget_quality": -3.0, "forget_quality": None}
            results.append(EpochResult(epoch, metrics, seconds, 0.0))
            yield results[-1]
        mark("end", run.id)
        if run.learning_rate == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        write_record(
            Record(
                id=run.id,
                kind="run",
                model=run.model.name,
                forget_fraction=run.forget_fraction,
                method=run.method.label,
                learning_rate=run.learning_rate,
                seed=run.seed,
                spec=run.to_json(),
                status="finished",
                profile="tofu",
                epochs=tuple(results),
                provenance={"threads": os.environ["OMP_NUM_THREADS"], "folder": str(Path.cwd())},
            ),
            folder,
        )

    def report(folder: Path) -> Path:
        page = folder / "report.html"
        page.write_text(str(len(read_records(folder))), encoding="utf-8")
        page.with_name("results.csv").touch()
        return page

    return Runtime(plan, tasks, execute, run_epochs, report)


def sweep(config: SweepConfig, runtime: Runtime) -> tuple[SweepResult, list[str]]:
    said = StringIO()
    result = run_sweep(config, Console(err=said), runtime)
    return result, said.getvalue().splitlines()


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def tries(marks: Path, kind: str = "try") -> list[int]:
    """How often each run was begun, or ended."""
    counts: dict[str, int] = {}
    for path in marks.glob(f"{kind}.*"):
        counts[path.name.split(".")[1]] = counts.get(path.name.split(".")[1], 0) + 1
    return sorted(counts.values())


@pytest.mark.usefixtures("empty_store")
def test_failures_and_kills_cost_no_other_run_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rates = (1e-5, 2e-5, 3e-5)
    changes = {"forget_fractions": (0.2,), "tracking": TrackingSettings()}
    config = a_config(tmp_path / "out", rates, **changes)
    marks, environment = tmp_path / "marks", dict(os.environ)
    result, said = sweep(config, fake_runtime(marks, fail=1e-5, die=2e-5))
    added = os.environ.keys() - environment.keys()
    assert not [name for name in added if not name.startswith("MLFLOW_")]
    assert (result.total, result.finished, result.failed) == (3, 2, 1)
    assert (tries(marks), tries(marks, "end")) == ([1, 2, 2], [1, 1])
    (failed,) = [r for r in read_records(result.folder) if r.status == "failed"]
    assert failed.learning_rate == 1e-5
    error = failed.error or ""
    assert error.startswith("OSError: epoch 1 is not for me\n")
    assert "in run_epochs" in error
    assert sum("failed: OSError: epoch 1 is not for me" in line for line in said) == 1
    assert sum("is not for me; trying again" in line for line in said) == 1
    assert sum("its process died: killed, or out of memory; trying" in x for x in said) == 1
    assert capfd.readouterr().out == "", "standard output is the command's own"

    mended, said = sweep(config, fake_runtime(marks))
    check_clean_sweep(mended, said)
    assert tries(marks, "end") == [1] * 3

    monkeypatch.setitem(sys.modules, "ray", None)  # from now on importing it is an error
    begin = time.monotonic()
    again, _ = sweep(config, fake_runtime(marks))
    assert time.monotonic() - begin < 4
    assert (again.total, again.finished, again.failed) == (3, 3, 0)
    assert tries(marks, "end") == [1] * 3
    assert logged(result.folder) == ["FINISHED"] * 4, "a parent and a child per run"


def test_an_error_that_would_come_again_is_not_tried_again(tmp_path: Path) -> None:
    rates, marks = (1e-5, 2e-5, 3e-5), tmp_path / "marks"
    config = a_config(tmp_path / "out", rates, forget_fractions=(0.2,))
    result, said = sweep(config, fake_runtime(marks, wrong=1e-5, leave=2e-5))
    assert (result.total, result.finished, result.failed) == (3, 1, 2)
    assert (tries(marks), tries(marks, "end")) == ([1, 1, 1], [1]), "none is tried twice"
    assert not any("trying again" in line for line in said)
    failed = {r.learning_rate: r for r in read_records(result.folder) if r.status == "failed"}
    wrong, left = failed[1e-5].error or "", failed[2e-5].error or ""
    assert wrong.startswith("TypeError: a loss is no list\n\nTraceback")
    assert "in run_epochs" in wrong
    assert "ray" not in wrong.partition("run_epochs")[2], "no traceback of Ray's below the cause"
    assert re.match(r"PluginError: sys\.exit\(0\) was called \(test_sweep\.py:\d+\)\n", left)
    assert "killed" not in left
    assert [e.epoch for e in failed[2e-5].epochs] == [1], "what it had evaluated is kept"


def logged(folder: Path) -> list[str]:
    """Status of every run in the folder's MLflow store."""
    from mlflow import MlflowClient

    client: Any = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.status for run in client.search_runs(ids)]


def check_clean_sweep(result: SweepResult, said: list[str]) -> None:
    """What a sweep of three runs looks like that ended well, the last of them in this command."""
    assert (result.total, result.finished, result.failed) == (3, 3, 0)
    assert result.report.read_text(encoding="utf-8") == "3"
    assert set(result.seconds) == {"preparing", "training", "evaluating", "overhead"}
    records = read_records(result.folder)
    assert {r.status for r in records} == {"finished"}
    assert {r.provenance["threads"] for r in records} == {"1"}
    assert {r.provenance["folder"] for r in records} == {str(Path.cwd())}
    plan = json.loads((result.folder / "plan.json").read_text(encoding="utf-8"))
    assert {run["id"] for run in plan["runs"]} == {r.id for r in records}
    lines = [line for line in said if line.startswith("[")]
    assert [line.split("]")[0] for line in lines] == ["[3/3"]
    assert "npo  lr 1e-05  forget 20 %  epoch 2:  utility 0.50  log10 FQ -3.0" in lines[0]
    left = {path.name for path in result.folder.iterdir()}
    files = {".lock", "plan.json", "records", "report.html", "results.csv", "sweep.log"}
    assert left == files | {"mlflow.db", "mlartifacts"}


def test_a_preparation_that_cannot_be_is_a_users_error(tmp_path: Path) -> None:
    config = a_config(tmp_path / "out")
    with pytest.raises(UnlearnbenchError, match=r"prepare base: no tokenizer in \./model; mend"):
        sweep(config, fake_runtime(tmp_path / "marks", behaviour="unprepared"))


DRIVER = """
import runpy, sys
from pathlib import Path
if __name__ == "__main__":
    names = runpy.run_path(sys.argv[1])
    out, marks = Path(sys.argv[2]), Path(sys.argv[3])
    config = names["a_config"](out, (1e-5, 2e-5, 3e-5))
    names["sweep"](config, names["fake_runtime"](marks, seconds=float(sys.argv[4])))
"""


def start_driver(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    arguments = [__file__, str(tmp_path / "out"), str(tmp_path / "marks"), str(seconds)]
    return subprocess.Popen([sys.executable, str(script), *arguments], text=True)


def wait_for(what: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def listens_on(driver: int) -> set[str]:
    """Addresses, as /proc writes them, at which the driver's descendants take connections."""
    parents = {
        int(stat.parent.name): int(text.rpartition(")")[2].split()[1])
        for stat in Path("/proc").glob("[0-9]*/stat")
        if (text := read(stat))
    }
    family = {driver}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    inodes = {
        str(link.readlink()).removeprefix("socket:[").removesuffix("]")
        for pid in family
        for link in Path(f"/proc/{pid}/fd").glob("*")
        if str(link.readlink()).startswith("socket:[")
    }
    tables = [read(Path(f"/proc/net/{name}")) for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def read(path: Path) -> str:
    """A file of /proc, whose process may be gone."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def test_a_killed_driver_takes_all_with_it_and_the_same_command_goes_on(tmp_path: Path) -> None:
    marks, folder = tmp_path / "marks", tmp_path / "out" / "small"
    driver = start_driver(tmp_path, seconds=0.5)
    records = folder / "records"
    wait_for(lambda: len(list(records.glob("[!.]*"))) >= 2 or driver.poll() is not None)
    assert driver.poll() is None
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    heard = listens_on(driver.pid)
    assert heard
    assert heard <= loopback
    with pytest.raises(RecordError, match=f"process {driver.pid} on"):  # two drivers
        sweep(a_config(tmp_path / "out", (1e-5, 2e-5, 3e-5)), fake_runtime(marks))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    workers = {int(path.name.split(".")[-1]) for path in marks.glob("try.*")}
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 20)
    ended = len(read_records(folder))
    assert 2 <= ended < 6

    result, _ = sweep(a_config(tmp_path / "out", (1e-5, 2e-5, 3e-5)), fake_runtime(marks))
    assert (result.total, result.finished, result.failed) == (6, 6, 0)
    assert len(read_records(folder)) == 6
    assert tries(marks, "end") == [1] * 6
    before = {path.name.split(".")[1] for path in marks.glob("try.*")}
    assert len(before) == 6
    own = {int(path.name.split(".")[-1]) for path in marks.glob("try.*")} - workers
    assert len(own) <= 2, "worker processes are reused from run to run"
    assert not list((folder / "records").glob(".*"))


def test_another_sweeps_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "small"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").touch()
    with pytest.raises(RecordError, match=r"thesis\.txt"):
        sweep(a_config(tmp_path / "out"), fake_runtime(tmp_path / "marks"))
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_runs_that_fit_nowhere_are_an_error_not_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []

    def init(**how: Any) -> None:
        started.append(how)

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}])
    config = a_config(tmp_path / "out", resources=Resources(cpu=2.0, gpu=0.5))
    message = (
        r"no run of tiny fits into what Ray has \(4 CPU, 0 GPU\): it takes 1 × \(2 CPU, 0\.5 GPU\)"
    )
    with pytest.raises(UnlearnbenchError, match=message):
        sweep(config, fake_runtime(tmp_path / "marks"))
    assert started[0]["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound but not listening: refuses
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = a_config(tmp_path / "out", ray=RaySettings(address=address))
        with pytest.raises(UnlearnbenchError, match=rf"no Ray cluster answers at '{address}'"):
            sweep(config, fake_runtime(tmp_path / "marks"))


def test_the_last_failure_in_a_line() -> None:
    log = (
        "Failure # 1 (occurred at 2026-01-01)\n\x1b[36mray::Run.train()\x1b[39m\nOSError: first\n"
        "Failure # 2 (occurred at 2026-01-01)\n\x1b[36mray::Run.train()\x1b[39m (pid=1)\n"
        '  File "x.py", line 3, in step\nunlearnbench.errors.TrainingError: the loss is: gone\n'
    )
    reason, full = last_failure(log)
    assert reason == "TrainingError: the loss is: gone"
    assert full.startswith("ray::Run.train() (pid=1)")
    assert last_failure("")[0] == "no message"
