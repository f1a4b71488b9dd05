"""The tiny base model is trained by a process of the driver, before the sweep is planned."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.small_run import config_of, runs_of
from tests.flow.sweep.shown_sweep import sweep
from tests.flow.sweep.test_driver import a_config, fake_pipeline
from unlearnbench.base.errors import DataError, UnlearnbenchError
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.resources import RaySettings, Resources
from unlearnbench.config.schema import SweepConfig
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.tiny_bases import missing_bases
from unlearnbench.sweep.early_bases import EarlyBases, early_bases
from unlearnbench.sweep.pipeline import Pipeline

SECONDS = 120.0


def wait_for(bases: EarlyBases) -> None:
    end = time.monotonic() + SECONDS
    while not bases.has_ended():
        assert time.monotonic() < end
        time.sleep(0.05)


def tasks_of(config: SweepConfig) -> Sequence[PreparationTask]:
    return preparation_tasks(config, runs_of(config), Path(config.output) / "small")


def only_folder(cache: Path) -> Path:
    (folder,) = (cache / "models").glob("[!.]*")
    return folder


def test_the_early_base_model_is_the_one_that_a_worker_would_train(tmp_path: Path) -> None:
    early = config_of(tmp_path / "early")
    assert missing_bases(early) == ["tiny"]
    with early_bases(early, Pipeline.usual()) as bases:
        begin = time.monotonic()
        wait_for(bases)
        (base,) = (task for task in tasks_of(early) if task.target == "base")
        assert bases.trains(base)
        seconds = bases.seconds_of(base)
        assert seconds is not None
        assert 0.0 < seconds < time.monotonic() - begin + 5.0
    assert missing_bases(early) == []

    usual = config_of(tmp_path / "usual")
    folder = tmp_path / "usual" / "runs" / "small"
    (base, *_) = tasks_of(usual)
    assert base.target == "base"
    execute_task(base, usual, folder)
    one, other = only_folder(early.cache_folder), only_folder(usual.cache_folder)
    assert one.name == other.name
    names = {path.name for path in one.iterdir()}
    assert {"model.safetensors", "prepared.json"} <= names
    assert names == {path.name for path in other.iterdir()}
    for name in names - {"prepared.json"}:  # it has the seconds
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def tiny_is_missing(_config: SweepConfig) -> Sequence[str]:
    return ("tiny",)


def pipeline_with(train: Any) -> Pipeline:
    return replace(Pipeline(), missing_bases=tiny_is_missing, prepare_bases=train)


def test_the_process_ends_with_its_context(tmp_path: Path) -> None:
    def train(_config: SweepConfig, _names: Sequence[str]) -> None:
        (tmp_path / "begun").write_text(str(os.getpid()))
        time.sleep(SECONDS)

    with early_bases(config_of(tmp_path), pipeline_with(train)) as bases:
        while not (tmp_path / "begun").is_file() or not (tmp_path / "begun").read_text():
            time.sleep(0.01)
        assert not bases.has_ended()
    assert bases.has_ended()
    assert bases.seconds_of(PreparationTask("", (), "tiny", "base")) is None
    process = int((tmp_path / "begun").read_text())
    assert process != os.getpid()
    assert not Path(f"/proc/{process}").exists()


def test_nothing_is_trained_early_where_the_driver_is_not_the_only_machine(tmp_path: Path) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    pipeline = pipeline_with(never)
    config = config_of(tmp_path)
    (model,) = config.models
    on_gpu = model.model_copy(update={"resources": Resources(gpu=1.0)})
    others = {
        "cluster": config.model_copy(update={"ray": RaySettings(address="auto")}),
        "storage": config.model_copy(update={"storage": str(tmp_path / "stored")}),
        "GPU": config.model_copy(update={"models": (on_gpu,)}),
        "processes": config.model_copy(update={"resources": Resources(processes=2)}),
    }
    for name, other in others.items():
        with early_bases(other, pipeline) as bases:
            assert bases.has_ended(), name
            assert not bases.trains(PreparationTask("", (), "tiny", "base")), name
    (tmp_path / "runs" / "small" / "records").mkdir(parents=True)
    with early_bases(config, pipeline) as bases:
        assert bases.has_ended(), "the sweep has begun before"


def test_errors_of_rows_are_left_to_the_plan(tmp_path: Path) -> None:
    def missing(_config: SweepConfig) -> Sequence[str]:
        raise DataError("no such file")

    pipeline = replace(Pipeline(), missing_bases=missing)
    with early_bases(config_of(tmp_path), pipeline) as bases:
        assert bases.has_ended()


def test_without_a_tiny_base_there_is_nothing_to_train(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (model,) = config.models
    given = model.model_copy(update={"base": "./model", "architecture": None})
    assert missing_bases(config.model_copy(update={"models": (given,)})) == []


def early_pipeline(marks: Path, end_of_early: str) -> Pipeline:
    """Fake runs, and a base model that is trained early until another task has begun.

    end_of_early  `succeeds`, `fails` or `hangs`
    """

    # Inside, because a worker cannot import this file.
    def missing(_config: SweepConfig) -> Sequence[str]:
        return ("tiny",)

    def train(_config: SweepConfig, _names: Sequence[str]) -> None:
        end = time.monotonic() + SECONDS
        while not [*marks.glob("begun.*")]:
            assert time.monotonic() < end
            time.sleep(0.02)
        if end_of_early != "succeeds":
            (marks / "failed").touch()
            time.sleep(SECONDS if end_of_early == "hangs" else 0)
            raise RuntimeError("of the early process")
        (marks / "task.base.early").touch()

    def execute(task: PreparationTask, _config: SweepConfig, _folder: Path) -> float:
        (marks / f"begun.{task.target}").write_text(str(os.getpid()))
        end = time.monotonic() + SECONDS
        while not [*marks.glob("task.base.*")]:
            # The lock on the base model is free once the early process has ended.
            if (marks / "failed").exists():
                (marks / "task.base.worker").touch()
            assert time.monotonic() < end
            time.sleep(0.02)
        (marks / f"task.{task.target}.worker").touch()
        return 0.25

    return replace(
        fake_pipeline(marks),
        execute=execute,
        missing_bases=missing,
        prepare_bases=train,
    )


@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize("end_of_early", ["succeeds", "fails", "hangs"])
def test_workers_begin_while_the_base_model_is_trained(tmp_path: Path, end_of_early: str) -> None:
    marks = tmp_path / "marks"
    begin = time.monotonic()
    result, lines = sweep(a_config(tmp_path / "out"), early_pipeline(marks, end_of_early))
    assert time.monotonic() - begin < SECONDS
    assert (result.total, result.finished, result.failed) == (4, 4, 0)
    assert lines[0] == "preparing: prepare base, prepare full, prepare retain"
    prepared = [line for line in lines if line.startswith("prepared ")]
    assert {line.split(" in ")[0] for line in prepared} == {
        f"prepared prepare {name}" for name in ("base", "full", "retain")
    }
    by_worker = (marks / "task.base.worker").exists()
    assert by_worker == (end_of_early != "succeeds"), "a worker prepares what is not there"
    prepared_by = {path.read_text() for path in marks.glob("begun.*")}
    run_by = {path.name.rpartition(".")[2] for path in marks.glob("try.*")}
    assert len(prepared_by | run_by) <= 2, "two processes do everything"


@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
def test_a_preparation_that_fails_ends_the_sweep_while_another_one_goes_on(tmp_path: Path) -> None:
    marks = tmp_path / "marks"

    def execute(task: PreparationTask, _config: SweepConfig, _folder: Path) -> float:
        if task.target == "full":
            raise UnlearnbenchError("no tokenizer in ./model")
        if task.target == "retain":
            while not (marks / "over").exists():
                time.sleep(0.02)
        return 0.0

    pipeline = replace(fake_pipeline(marks), execute=execute)
    begin = time.monotonic()
    try:
        with pytest.raises(UnlearnbenchError) as caught:
            sweep(a_config(tmp_path / "out"), pipeline)
    finally:
        (marks / "over").touch()
    assert str(caught.value).startswith("prepare full: no tokenizer in ./model; fix that and run")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begin < SECONDS
    assert not [*marks.glob("try.*")], "no run has begun"


@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
def test_the_longest_preparation_comes_first_and_attacks_last(tmp_path: Path) -> None:
    marks = tmp_path / "marks"

    def tasks(*_: object) -> Sequence[PreparationTask]:
        return [
            PreparationTask("attack", (), "tiny", "full", 0.1, "noise"),
            PreparationTask("evaluate", (), "tiny", "full", 0.1),
            PreparationTask("short", (), "tiny", "retain80", rows=80),
            PreparationTask("long", (), "tiny", "retain90", rows=90),
        ]

    def execute(task: PreparationTask, _config: SweepConfig, _folder: Path) -> float:
        with (marks / "order").open("a") as file:
            file.write(f"{task.label} {os.getpid()}\n")
        return 0.0

    pipeline = replace(fake_pipeline(marks), tasks=tasks, execute=execute)
    sweep(a_config(tmp_path / "out", ray=RaySettings(concurrent=1)), pipeline)
    tasks_and_processes = [line.split() for line in (marks / "order").read_text().splitlines()]
    order = [task for task, _ in tasks_and_processes]
    assert order == ["long", "short", "evaluate", "attack"]
    run_by = {path.name.rpartition(".")[2] for path in marks.glob("try.*")}
    assert {process for _, process in tasks_and_processes} == run_by
    assert len(run_by) == 1, "one process does everything"
