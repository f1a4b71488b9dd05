"""A sweep stops before the first run from a start model that has not learned its rows."""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.factories.marks import WITH_MLFLOW
from tests.factories.small_sweep import SMALL_MODEL
from tests.flow.sweep.shown_sweep import sweep
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.cli.main import main
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.resources import RaySettings, TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.evaluation.start_check import Answered, Memorized, StartCheck
from unlearnbench.report.report import finish
from unlearnbench.results.records import (
    EpochResult,
    Record,
    read_records,
    run_record,
    write_record,
)
from unlearnbench.sweep.pipeline import Pipeline

pytestmark = [pytest.mark.long, *WITH_MLFLOW]
KNOWS = StartCheck(Memorized("forget", 0.9, 0.1, (0.7, 0.9), 40), Answered("retain", 0.9, None, 40))
UNLEARNED = StartCheck(Memorized("forget", 0.12, 0.11, (-0.02, 0.04), 40), KNOWS.answered)
UNSURE = StartCheck(Memorized("forget", 1.0, 0.0, (-0.2, 1.0), 4), KNOWS.answered)
MUTE = StartCheck(KNOWS.memorized, Answered("retain", 0.04, (0.01, 0.07), 40))
Checks = dict[tuple[str, float], StartCheck]


def a_config(output: Path, **changes: Any) -> SweepConfig:
    config = SweepConfig(
        name="small",
        models=tuple(ModelSettings(name=name, base="tiny") for name in ("one", "two")),
        forget_fractions=(0.1, 0.2),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        learning_rates=(1e-5,),
        epochs=1,
        ray=RaySettings(concurrent=2),
        tracking=TrackingSettings(enabled=False),
        output=str(output),
    )
    return config.model_copy(update=changes)


def pipeline_of(marks: Path, checks: Checks, *, attack: str = "") -> Pipeline:
    """Evaluations of start models, and runs, that take no time and write what they do to `marks`.

    checks  what each start model knows, by model and split
    attack  under which it is evaluated as well, which lasts until there is a file `over`
    """
    marks.mkdir(exist_ok=True)
    entries = {f"{m}-{round(100 * f)}": check.entry for (m, f), check in checks.items()}
    headline = {"model_utility": 0.5, "log10_forget_quality": -3.0}

    def plan(config: SweepConfig) -> Plan:
        return make_plan(config, "data")

    def tasks(
        _config: SweepConfig, runs: Sequence[RunSpec], folder: Path
    ) -> Sequence[PreparationTask]:
        made: list[PreparationTask] = []
        for model, split in dict.fromkeys((run.model.name, run.forget_fraction) for run in runs):
            percent = round(100 * float(split))
            done = (folder / "records" / f"start-{model}-{percent}").is_dir()
            plain = PreparationTask(f"{model} {split}", (), model, "full", split, done=done)
            made.append(plain)
            if attack:
                after = (plain.id,)
                made.append(
                    PreparationTask(f"{model} {split} under", after, model, "full", split, attack)
                )
        return made

    def execute(task: PreparationTask, _config: SweepConfig, folder: Path) -> float:
        import time

        # A task that began before the sweep was stopped goes on, since tests share one Ray.
        name = f"{task.model}-{round(100 * float(task.fraction or 0))}"
        if task.attack:
            while not (marks / "over").exists():
                time.sleep(0.05)
        (marks / f"start.{name}.{len([*marks.glob(f'start.{name}.*')])}").touch()
        result = EpochResult(0, headline, 0.0, 0.0)
        record = Record(
            id=f"start-{name}",
            kind="fine-tuned",
            model=task.model,
            forget_fraction=task.fraction or 0.0,
            method="fine-tuned",
            learning_rate=None,
            seed=0,
            spec={},
            status="finished",
            profile=TOFU.id,
            provenance=entries.get(name, {}),
            epochs=(result,),
        )
        write_record(record, folder)
        return 0.0

    def run_epochs(run: RunSpec, _config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        (marks / f"run.{run.id}").touch()
        result = EpochResult(1, headline, 0.0, 0.0)
        yield result
        ended: dict[str, Any] = {"status": "finished", "profile": TOFU.id}
        write_record(run_record(run, epochs=(result,), **ended), folder)

    return Pipeline(plan, tasks, execute, run_epochs, finish)


def printed_by(config: SweepConfig, pipeline: Pipeline, *, force: bool = False) -> str:
    """What a sweep prints."""
    _, lines = sweep(config, pipeline, force=force)
    return "\n".join([*lines, ""])


def some_checks(**changes: StartCheck) -> Checks:
    places = [(model, split) for model in ("one", "two") for split in (0.1, 0.2)]
    return {(m, f): changes.get(f"{m}_{round(100 * f)}", KNOWS) for m, f in places}


@pytest.mark.usefixtures("shared_ray")
def test_all_start_models_that_fail_are_named_before_anything_is_swept(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    checks = some_checks(one_20=UNLEARNED, two_10=MUTE)
    # With one slot, no run begins before all models are prepared.
    config = a_config(tmp_path / "out", ray=RaySettings(concurrent=1))
    with pytest.raises(UnlearnbenchError) as caught:
        printed_by(config, pipeline_of(marks, checks))
    lines = str(caught.value).splitlines()
    assert (
        lines[0] == "nothing was swept, because 2 of 4 start models cannot show what a method does"
    )
    assert lines[1].startswith(
        "one, forget 20 %: the start model has not learned the forget rows: "
    )
    assert "0.120, and 0.110 of the retain model" in lines[1]
    assert "95 % interval -0.020 to +0.040, n = 40" in lines[1]
    assert lines[2].startswith(
        "two, forget 10 %: the start model does not answer the retain rows: "
    )
    assert "0.040, below 0.1 (95 % interval 0.010 to 0.070, n = 40)" in lines[2]
    assert lines[3].endswith("--force sweeps all the same")
    assert not [*marks.glob("run.*")]

    # What was evaluated is kept: a second try evaluates nothing again, and is refused as well.
    assert len([*marks.glob("start.*")]) == 4
    with pytest.raises(UnlearnbenchError, match="nothing was swept"):
        printed_by(config, pipeline_of(marks, checks))
    assert len([*marks.glob("start.*")]) == 4
    assert not [*marks.glob("run.*")]

    output = printed_by(config, pipeline_of(marks, checks), force=True)
    assert "going on with --force" in output
    assert len([*marks.glob("run.*")]) == 4
    folder = tmp_path / "out" / "small"
    assert len([r for r in read_records(folder) if r.kind == "run"]) == 4
    found = json.loads((folder / "conclusion.json").read_text(encoding="utf-8"))["panels"]
    told = {(panel["model"], panel["split"]): panel["found"] for panel in found}
    forced = "Its runs were made all the same, as with --force."
    assert {key for key, text in told.items() if forced in text} == {("one", 0.2), ("two", 0.1)}
    assert told["one", 0.2].startswith("No result: the start model has not learned")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "has not learned the forget rows" in page

    # Nothing is left to run, so that nothing is refused.
    assert "going on" not in printed_by(config, pipeline_of(marks, checks))


@pytest.mark.usefixtures("shared_ray")
def test_runs_of_a_model_begin_while_another_one_is_prepared_that_stops_the_sweep(
    tmp_path: Path,
) -> None:
    marks = tmp_path / "marks"
    config = a_config(tmp_path / "out")
    checks = some_checks(two_10=UNLEARNED, two_20=MUTE)
    pipeline = pipeline_of(marks, checks)
    execute = pipeline.execute

    def wait_for_runs(task: PreparationTask, config: SweepConfig, folder: Path) -> float:
        end = time.monotonic() + 120.0
        while task.model == "two" and len([*marks.glob("run.*")]) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        # The first split of the second model ends last, and is named first all the same.
        is_first = (task.model, task.fraction) == ("two", 0.1)
        while is_first and not [*marks.glob("start.two-20.*")]:
            assert time.monotonic() < end
            time.sleep(0.05)
        if is_first:
            # So its record is written after the other one has been judged, as a rule.
            time.sleep(1.0)
        return execute(task, config, folder)

    with pytest.raises(UnlearnbenchError) as caught:
        printed_by(config, replace(pipeline, execute=wait_for_runs))
    first, second, third, last = str(caught.value).splitlines()
    because = "because 2 of 4 start models cannot show what a method does"
    stops = "the sweep stops after"
    assert first in {f"{stops} 1 run, {because}", f"{stops} 2 runs, {because}"}
    assert second.startswith("two, forget 10 %: the start model has not learned the forget rows")
    assert third.startswith("two, forget 20 %: the start model does not answer the retain rows")
    assert last.startswith("runs, prepared models and evaluations are kept")
    runs = {run.id: run for run in pipeline.plan(config).runs}
    begun = {path.name.removeprefix("run.") for path in marks.glob("run.*")}
    assert [runs[run_id].model.name for run_id in begun] == ["one", "one"]
    assert len([*marks.glob("start.*")]) == 4

    # The models know their rows now. What has finished is kept.
    recorded = {record.id for record in read_records(tmp_path / "out" / "small")} & runs.keys()
    assert recorded
    for percent in (10, 20):
        shutil.rmtree(tmp_path / "out" / "small" / "records" / f"start-two-{percent}")
    output = printed_by(config, pipeline_of(marks, some_checks()))
    assert "prepared two 0.1" in output
    assert "prepared one" not in output
    assert f"running: {4 - len(recorded)} runs, 2 at a time, {len(recorded)} done already" in output
    assert {path.name.removeprefix("run.") for path in marks.glob("run.*")} == runs.keys()


@pytest.mark.usefixtures("shared_ray")
def test_a_sweep_goes_on_if_the_models_of_its_runs_know_their_rows(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    checks = some_checks(two_10=UNLEARNED, two_20=MUTE)
    config = a_config(tmp_path / "out")
    only_one = config.model_copy(update={"models": config.models[:1]})
    printed_by(only_one, pipeline_of(marks, checks))
    assert len([*marks.glob("run.*")]) == 2


@pytest.mark.usefixtures("shared_ray")
def test_a_start_model_of_an_earlier_version_is_measured_when_its_sweep_goes_on(
    tmp_path: Path,
) -> None:
    marks = tmp_path / "marks"
    pipeline = pipeline_of(marks, {})  # records without what the start model knows
    asked: list[tuple[str, Any]] = []

    def measured(_config: SweepConfig, _folder: Path, model: str, split: Any) -> StartCheck:
        asked.append((model, split))
        return UNLEARNED if (model, split) == ("two", 0.1) else KNOWS

    pipeline = replace(pipeline, start_check=measured)
    config = a_config(tmp_path / "out", ray=RaySettings(concurrent=1))
    with pytest.raises(UnlearnbenchError, match="two, forget 10 %: the start model has not lea"):
        printed_by(config, pipeline)
    assert sorted(asked) == [(m, f) for m in ("one", "two") for f in (0.1, 0.2)]
    assert not [*marks.glob("run.*")]


@pytest.mark.usefixtures("shared_ray")
def test_a_sweep_goes_on_in_doubt_and_says_so(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    config = a_config(tmp_path / "out")
    output = " ".join(printed_by(config, pipeline_of(marks, some_checks(one_20=UNSURE))).split())
    assert len([*marks.glob("run.*")]) == 4
    doubt = "one, forget 20 %: 4 forget rows are too few to be sure that the start model has"
    assert doubt in output
    page = (tmp_path / "out" / "small" / "report.html").read_text(encoding="utf-8")
    assert "4 forget rows are too few to be sure" in page
    assert "No result" not in page


@pytest.mark.usefixtures("shared_ray")
def test_attacks_on_start_models_are_not_waited_for(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    config = a_config(tmp_path / "out", attacks=(AttackSpec(name="noise", settings={}),))
    pipeline = pipeline_of(marks, some_checks(one_10=MUTE), attack="noise")
    try:
        with pytest.raises(UnlearnbenchError, match=r"1 of 4 start models[\s\S]*one, forget 10 %"):
            printed_by(config, pipeline)
    finally:
        (marks / "over").touch()
    assert not [*marks.glob("run.*")]


@pytest.mark.usefixtures("shared_ray")
def test_a_second_request_is_judged_before_the_first_one_runs(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    config = a_config(tmp_path / "out", requests="in-sequence")
    with pytest.raises(UnlearnbenchError, match=r"1 of 4 start models[\s\S]*one, forget 20 %"):
        printed_by(config, pipeline_of(marks, some_checks(one_20=UNLEARNED)))
    assert not [*marks.glob("run.*")]


@pytest.mark.usefixtures("empty_store", "shared_ray")
def test_the_tracker_gets_the_start_models_of_a_sweep_that_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = a_config(tmp_path / "out", tracking=TrackingSettings(), ray=RaySettings(concurrent=1))
    with pytest.raises(UnlearnbenchError):
        printed_by(config, pipeline_of(tmp_path / "marks", some_checks(one_10=MUTE)))
    client: Any = MlflowClient(f"sqlite:///{tmp_path / 'out' / 'small'}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    kinds = [run.data.tags.get("unlearnbench.run_id", "") for run in client.search_runs(ids)]
    assert sorted(filter(None, kinds)) == [
        f"start-{model}-{round(100 * split)}" for model in ("one", "two") for split in (0.1, 0.2)
    ]


SMALL = (
    SMALL_MODEL
    + """
methods: [npo]
learning_rates: [1.0e-3]
epochs: 1
evaluation: {rows: 4, max_length: 96}
tracking: {enabled: false}
ray: {concurrent: 1}
"""
)


@pytest.mark.usefixtures("shared_ray")
def test_a_model_that_knows_nothing_is_swept_only_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    assert main(["sweep", "small.yaml"]) == 2
    error = capsys.readouterr().err
    assert "nothing was swept, because the start model cannot show what a method does" in error
    assert "has not learned the forget rows and does not answer the retain rows" in error
    assert "(epochs 1, " in error
    folder = tmp_path / "runs" / "small"
    assert [record.kind for record in read_records(folder)] == ["fine-tuned", "retain"]
    assert main(["sweep", "small.yaml", "--force"]) == 0
    output = capsys.readouterr()
    assert "1 of 1 runs finished" in output.out
    assert "prepared tiny" not in output.err, "its models and evaluations were kept"
    assert "NO RESULT for tiny, forget 50 %" in output.err
