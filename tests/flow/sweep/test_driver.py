"""Sweeps through a real Ray, with runs that take no time: no run is lost or run twice."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.factories.marks import WITH_MLFLOW
from tests.flow.sweep.shown_sweep import sweep
from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.resources import RaySettings, TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import (
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.report.report import Report
from unlearnbench.results.records import (
    EpochResult,
    read_records,
    run_record,
    write_record,
)
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.sweep_state import SweepResult

pytestmark = [pytest.mark.long, *WITH_MLFLOW]


SIX_RATES = (1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 6e-5)


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


def fake_pipeline(
    marks: Path,
    *,
    behaviour: str = "",
    fail: float = 0.0,
    wrong: float = 0.0,
    die: float = 0.0,
    room: Path | None = None,
    seconds: float = 0.0,
) -> Pipeline:
    """Runs that write what they do into `marks`.

    fail       runs at this learning rate fail, as they do where a disk is away
    wrong      they fail in the second epoch as code does that is wrong: each time
    die        their process is killed in the second epoch of the first try
    room       their disk is full while there is no such file
    behaviour  `unprepared`: preparation fails
    """
    marks.mkdir(exist_ok=True)

    # All of it inside: what lies at the top of a test file cannot be imported by a worker.
    def mark(kind: str, name: str) -> int:
        """Note it; returns how often that was noted before."""
        before = len(list(marks.glob(f"{kind}.{name}.*")))
        (marks / f"{kind}.{name}.{before}.{os.getpid()}").touch()
        return before

    def plan(config: SweepConfig) -> Plan:
        return make_plan(config, "data")

    def tasks(
        _config: SweepConfig, _runs: Sequence[RunSpec], _folder: Path
    ) -> Sequence[PreparationTask]:
        names = {"base": (), "full": ("tiny/base",), "retain": ("tiny/base",)}
        return [
            PreparationTask(f"prepare {k}", v, "tiny", k, done=bool([*marks.glob(f"task.{k}.*")]))
            for k, v in names.items()
        ]

    def execute(task: PreparationTask, _config: SweepConfig, _folder: Path) -> float:
        for name in task.after:
            if not list(marks.glob(f"task.{Path(name).name}.*")):
                raise RuntimeError(f"{name} is not there")
        if behaviour == "unprepared":
            raise UnlearnbenchError("no tokenizer in ./model")
        mark("task", task.target)
        return 0.25

    def run_epochs(run: RunSpec, _config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        tries = mark("try", run.id)
        if run.after and not [*(folder / "records").glob(f"{run.after}*")]:
            raise TypeError(f"{run.after}, which is before it, is not recorded")
        results: list[EpochResult] = []
        for epoch in range(1, run.budget + 1):
            time.sleep(seconds)
            if room is not None and not room.exists():
                raise OSError(28, "No space left on device")
            if run.learning_rate == fail:
                raise OSError(f"epoch {epoch} is not for me")
            if run.learning_rate == wrong and epoch == 2:
                raise TypeError("a \x1b[31mloss\x1b[0m is no list")
            if run.learning_rate == die and not tries and epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            metrics = {"model_utility": 0.5, "log10_forget_quality": -3.0, "forget_quality": None}
            results.append(EpochResult(epoch, metrics, seconds, 0.0))
            yield results[-1]
        mark("end", run.id)
        made = {"threads": os.environ["OMP_NUM_THREADS"], "folder": str(Path.cwd())}
        ended: dict[str, Any] = {"status": "finished", "profile": TOFU.id, "provenance": made}
        write_record(run_record(run, epochs=tuple(results), **ended), folder)

    def report(folder: Path) -> Report:
        page = folder / "report.html"
        page.write_text(str(len(read_records(folder))), encoding="utf-8")
        page.with_name("results.csv").touch()
        return Report(page, Results.read(folder))

    return Pipeline(plan, tasks, execute, run_epochs, report)


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def tries(marks: Path, kind: str = "try") -> list[int]:
    """Count how often each run was started (`try`) or ended (`end`)."""
    counts: dict[str, int] = {}
    for path in marks.glob(f"{kind}.*"):
        counts[path.name.split(".")[1]] = counts.get(path.name.split(".")[1], 0) + 1
    return sorted(counts.values())


@pytest.mark.usefixtures("shared_ray")
def test_a_full_disk_ends_the_sweep_at_its_first_run(tmp_path: Path) -> None:
    config = a_config(tmp_path / "out", ray=RaySettings(concurrent=1))
    marks, room = tmp_path / "marks", tmp_path / "room"
    fix = "No space left on device; make room and run the same command again"
    with pytest.raises(UnlearnbenchError) as caught:
        sweep(config, fake_pipeline(marks, room=room))
    assert str(caught.value) == f"{tmp_path / 'out' / 'small'}: {fix}"
    assert tries(marks) == [1], "no retry, and no other run"
    room.touch()
    result, _ = sweep(config, fake_pipeline(marks, room=room))
    assert (result.total, result.finished, result.failed) == (4, 4, 0)
    assert tries(marks, "end") == [1] * 4


@pytest.mark.usefixtures("shared_ray")
def test_a_full_memory_ends_the_sweep_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's monitor ends a worker with an error that Tune does not expect."""
    # Ray reads its variables at the first import: in a process of its own that is the sweep's.
    import ray.exceptions
    from ray.air.execution._internal.actor_manager import RayActorManager

    error = cast("Any", ray.exceptions.OutOfMemoryError)("no room")

    def killed(manager: Any, tracked_actor_task: Any, result: Any) -> None:  # noqa: ARG001
        manager._actor_task_failed(tracked_actor_task, error)

    monkeypatch.setattr(RayActorManager, "_actor_task_resolved", killed)
    with pytest.raises(UnlearnbenchError, match=r"memory is nearly full.*concurrent: 1"):
        sweep(a_config(tmp_path / "out"), fake_pipeline(tmp_path / "marks"))


@pytest.mark.usefixtures("shared_ray")
def test_a_request_waits_for_the_one_before_it(tmp_path: Path) -> None:
    fractions = (0.3, 0.1, 0.2)
    config = a_config(tmp_path / "out", forget_fractions=fractions, requests="in-sequence")
    pipeline = fake_pipeline(tmp_path / "marks", wrong=2e-5)
    result, lines = sweep(config, pipeline)
    assert (result.total, result.finished, result.failed) == (6, 3, 3)
    assert not [line for line in lines if "is not recorded" in line]
    assert [line.partition(";")[0] for line in lines if line.startswith("running")] == [
        "running: 6 runs, 2 at a time",
        "running: 4 runs, 2 at a time, 2 done already",
        "running: 2 runs, 2 at a time, 4 done already",
    ]


@pytest.mark.usefixtures("empty_store", "shared_ray")
def test_failures_cost_no_other_run_and_finished_runs_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One run fails, one is killed once, one has a bug, one just runs."""
    fail, die, _fine, wrong = rates = (1e-5, 2e-5, 3e-5, 4e-5)
    changes = {"forget_fractions": (0.2,), "tracking": TrackingSettings()}
    config = a_config(tmp_path / "out", rates, **changes, ray=RaySettings(concurrent=1))
    marks, environment = tmp_path / "marks", dict(os.environ)
    pipeline = fake_pipeline(marks, fail=fail, die=die, wrong=wrong)
    result, lines = sweep(config, pipeline)
    added = os.environ.keys() - environment.keys()
    assert not [name for name in added if not name.startswith("MLFLOW_")]
    assert (result.total, result.finished, result.failed) == (4, 2, 2)
    assert (tries(marks), tries(marks, "end")) == ([1, 1, 2, 2], [1, 1])
    assert sum("trying again" in line for line in lines) == 2
    assert sum("is not for me; trying again" in line for line in lines) == 1
    assert sum("its process died without an exception (" in x for x in lines) == 1
    assert sum("failed: OSError: epoch 1 is not for me" in line for line in lines) == 1
    assert capfd.readouterr().out == "", "standard output is the command's own"
    failed = {r.learning_rate: r for r in read_records(result.folder) if r.status == "failed"}
    errors = {rate: record.error or "" for rate, record in failed.items()}
    assert errors.keys() == {fail, wrong}
    assert errors[fail].startswith("OSError: epoch 1 is not for me\n")
    assert "in run_epochs" in errors[fail]
    assert errors[wrong].startswith("TypeError: a loss is no list\n\nTraceback")
    assert "in run_epochs" in errors[wrong]
    assert [e.epoch for e in failed[wrong].epochs] == [1], "its evaluated epoch is kept"
    assert "ray" not in errors[wrong].partition("run_epochs")[2], "no traceback of Ray's below it"

    fixed, lines = sweep(config, fake_pipeline(marks))
    check_finished_sweep(fixed, lines)
    assert tries(marks, "end") == [1] * 4

    monkeypatch.setitem(sys.modules, "ray", None)  # from now on importing it is an error
    again, _ = sweep(config, fake_pipeline(marks))
    assert (again.total, again.finished, again.failed) == (4, 4, 0)
    assert again.mlflow_command.startswith("unlearnbench ui ")
    assert tries(marks, "end") == [1] * 4
    assert logged(result.folder) == ["FINISHED"] * 5, "a parent and a child per run"


def logged(folder: Path) -> list[str]:
    """Status of every run in the folder's MLflow store."""
    from mlflow import MlflowClient

    client: Any = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.status for run in client.search_runs(ids)]


def check_finished_sweep(result: SweepResult, lines: list[str]) -> None:
    """Check a sweep of four runs, of which this command has finished the last two."""
    assert (result.total, result.finished, result.failed) == (4, 4, 0)
    assert result.report.read_text(encoding="utf-8") == "4"
    records = read_records(result.folder)
    assert {r.status for r in records} == {"finished"}
    assert {r.provenance["threads"] for r in records} == {"1"}
    assert {r.provenance["folder"] for r in records} == {str(Path.cwd())}
    plan = json.loads((result.folder / "plan.json").read_text(encoding="utf-8"))
    assert {run["id"] for run in plan["runs"]} == {r.id for r in records}
    ends = [line for line in lines if line.startswith("[")]
    assert [line.split("]")[0] for line in ends] == ["[3/4", "[4/4"]
    pattern = "npo  lr 1e-05  forget 20 %  epoch 2:  utility 0.50  log10 FQ -3.0"
    assert sum(pattern in line for line in ends) == 1
    left = {path.name for path in result.folder.iterdir()}
    files = {".lock", "plan.json", "records", "report.html", "results.csv", "sweep.log"}
    assert left == files | {"mlflow.db", ".mlflow.db.lock", "mlartifacts", "links.json"}


@pytest.mark.usefixtures("shared_ray")
def test_a_failed_preparation_is_a_users_error(tmp_path: Path) -> None:
    config = a_config(tmp_path / "out")
    with pytest.raises(UnlearnbenchError, match=r"prepare base: no tokenizer in \./model; fix"):
        sweep(config, fake_pipeline(tmp_path / "marks", behaviour="unprepared"))
