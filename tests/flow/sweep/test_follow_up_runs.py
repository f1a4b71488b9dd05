"""Suggested settings survive a kill; a study gets the results of its runs."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from tests.factories.recorder import Recorder, World
from tests.factories.rows import RowPlan, rows_of
from unlearnbench.base.console import Console
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.config.search import Range, SearchSettings, SelectSettings
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.report.sweep_tracker import SweepTracker
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import (
    EpochResult,
    Record,
    read_record,
    read_records,
    run_record,
    write_record,
)
from unlearnbench.results.remote_copies import Storage
from unlearnbench.sweep.follow_up_runs import FollowUpRuns
from unlearnbench.sweep.optuna_search import OptunaStudy, Search, mean_values
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState

from .test_optuna_search import states_of

Status = Literal["finished", "collapsed", "failed", "stopped"]


def a_config(output: Path, **changes: Any) -> SweepConfig:
    flat = method_spec("flat", {})
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,),
        methods=(
            MethodGrid(specs=(flat,)),
            MethodGrid(
                specs=tuple(method_spec("rmu", {"layer": 1, "steering": s}) for s in (5.0, 6.5)),
                ranges={"layer": Range(low=1, high=4)},
            ),
        ),
        learning_rates=Range(low=1e-6, high=1e-3, log=True),
        epochs=2,
        search=SearchSettings(kind="optuna", trials=3),
        output=str(output),
    )
    return config.model_copy(update=changes)


def a_record(run: RunSpec, status: Status = "finished", points: Any = ((0.5, -3.0),)) -> Record:
    epochs = [
        EpochResult(i + 1, {"model_utility": u, "log10_forget_quality": q}, 0.0, 0.0)
        for i, (u, q) in enumerate(points)
    ]
    return run_record(run, status=status, profile="tofu", epochs=tuple(epochs), error=None)


def a_state(folder: Path) -> SweepState:
    tracker = cast(SweepTracker, None)  # nothing ends here
    return SweepState(
        folder, Progress(Console(err=StringIO()), default_headline()), tracker, Storage(None, {})
    )


def searching(config: SweepConfig, folder: Path) -> tuple[FollowUpRuns, Search]:
    follow_up = FollowUpRuns(make_plan(config, "data"), folder)
    plan = follow_up.current_plan()
    known = {path.name for path in (folder / "records").glob("*")}
    waiting = [run for run in plan.runs if run.id not in known]
    return follow_up, Search(follow_up, waiting, a_state(folder))


def drained(search: Search, count: int = 100) -> list[RunSpec]:
    runs: list[RunSpec] = []
    while len(runs) < count and (run := search.next()) is not None:
        runs.append(run)
    return runs


def test_suggested_settings_are_found_again_with_or_without_runs(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    _, search = searching(config, tmp_path)
    assert len(search.runs) + len(search.placeholders) == 6
    first = drained(search, 4)
    assert [run.method.name for run in first] == ["flat", "rmu", "flat", "rmu"], "in turns"
    assert len({run.id for run in first}) == 4
    write_record(a_record(first[0]), tmp_path)
    with (tmp_path / "search.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"space": "npo')  # a kill in the middle of a line

    follow_up, search = searching(config, tmp_path)
    assert [len(study.points) for study in follow_up.studies] == [2, 2]
    again = drained(search)
    assert {run.id for run in again[:3]} == {run.id for run in first[1:]}, "those first"
    assert len(again) == 5
    assert {run.id for run in again[3:]}.isdisjoint({run.id for run in first})
    follow_up, search = searching(config, tmp_path)
    assert len(drained(search)) == 5, "suggested, and none of them run"
    for run in again:
        write_record(a_record(run), tmp_path)
    follow_up, search = searching(config, tmp_path)
    assert drained(search) == []
    assert len(follow_up.current_plan().runs) == 6


@pytest.mark.parametrize("damage", [{"method": {"name": "flat", "no_such_key": 1}}, {"method": 1}])
def test_a_suggestion_of_another_version_of_a_method_is_left_out(
    damage: dict[str, Any], tmp_path: Path
) -> None:
    config = a_config(tmp_path)
    _, search = searching(config, tmp_path)
    drained(search, 2)
    path = tmp_path / "search.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | damage)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    plan, _ = searching(config, tmp_path)
    assert sum(len(study.points) for study in plan.studies) == len(lines) - 1


def test_runs_of_another_search_are_trials_where_they_fit(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    grid = config.model_copy(
        update={"learning_rates": (1e-5, 1.0), "search": SearchSettings(), "methods": ()}
    )
    flat = grid.model_copy(update={"methods": (config.methods[0],)})
    other = flat.model_copy(update={"epochs": 1, "learning_rates": (1e-4,)})
    for one in (flat, other):
        for run in make_plan(one, "data").runs:
            write_record(a_record(run), tmp_path)
    follow_up = FollowUpRuns(make_plan(config, "data"), tmp_path)
    found = [[rate for _, rate in study.points] for study in follow_up.studies]
    assert found == [[1e-5], []], "a rate outside the range and other epochs are no trials"


def test_a_study_gets_the_mean_of_seeds_and_failures(tmp_path: Path) -> None:
    config = a_config(tmp_path, seeds=(0, 1))
    follow_up, search = searching(config, tmp_path)
    runs = drained(search)
    assert len(runs) == 12
    flat = [run for run in runs if run.method.name == "flat"]
    outcomes: list[tuple[Status, Any]] = [
        ("finished", ((0.1, -9.0), (0.4, -4.0))),
        ("finished", ((0.1, -9.0), (0.6, -2.0))),
        ("collapsed", ((0.9, 0.0),)),
        ("finished", ((0.9, 0.0),)),
        ("failed", ()),
        ("finished", ((0.9, 0.0),)),
    ]
    records = [a_record(run, *how) for run, how in zip(flat, outcomes, strict=True)]
    for record in records:
        write_record(record, tmp_path)
        search.add_record(record)
    expected = [("COMPLETE", [0.5, -3.0]), ("COMPLETE", [0.5, -3.0]), ("FAIL", None)]
    (study,) = [s for s in follow_up.studies if s.space.base.name == "flat"]
    known = {record.id: record for record in records}
    assert states_of(OptunaStudy(study, config.search, known)) == expected, "a resumed study"
    states = states_of(next(one for one in search.studies if one.study is study))
    assert states == expected, (
        "the study that suggested them: a collapse is as bad as the worst seen"
    )


def test_a_search_that_goes_on_reads_the_table(tmp_path: Path) -> None:
    """The settings of its objective have changed since: records have it by the earlier ones."""
    config = load_config("quickstart").model_copy(
        update={
            "output": str(tmp_path),
            "methods": a_config(tmp_path).methods[:1],
            "learning_rates": Range(low=1e-6, high=1e-3, log=True),
            "forget_fractions": (0.2,),
            "seeds": (0,),
            "epochs": 1,
            "attacks": (),
            "search": SearchSettings(kind="optuna", trials=3, metric="mia_min_k"),
        }
    )
    evaluation = config.evaluation.model_copy(update={"metrics": {"mia-min-k": {"share": 1.0}}})
    config = config.model_copy(update={"evaluation": evaluation})
    world = World({0.2: rows_of("synthetic", 0.2, RowPlan())})
    recorder = Recorder(config, world, tmp_path, metrics={"mia-min-k": {"share": 0.05}})
    recorder.write_references()
    follow_up, search = searching(config, tmp_path)
    runs = [search.next() for _ in range(3)]
    records = [recorder.write_run(run) for run in runs if run is not None]
    plan = replace(follow_up.current_plan(), references=recorder.reference_ids())
    table = table_of(read_records(tmp_path), evaluation.metrics)
    now = {row.run_id: row.metrics["mia_min_k"] for row in table.rows}
    then = {record.id: record.epochs[-1].metrics["mia_min_k"] for record in records}
    assert all(now[id_] != value for id_, value in then.items())

    state = a_state(tmp_path)
    state.tracker = SweepTracker(TrackingSettings(enabled=False), tmp_path, config)
    state.track_finished(plan)
    expected = [("COMPLETE", [now[record.id]]) for record in records]
    resumed = Search(FollowUpRuns(plan, tmp_path), (), state)
    assert states_of(resumed.studies[0]) == expected
    search.state = state
    for record in records:
        search.add_record(read_record(tmp_path / "records" / record.id))
    assert states_of(search.studies[0]) == expected


def test_one_metric_or_a_weighted_sum_of_some(tmp_path: Path) -> None:
    (run, *_) = drained(searching(a_config(tmp_path), tmp_path)[1])
    records = [a_record(run, points=((0.5, -3.0), (0.4, -2.0))), a_record(run, "stopped")]
    assert mean_values(records, ("model_utility",)) == pytest.approx([0.45])
    weights = {"model_utility": 1.0, "log10_forget_quality": 0.1}
    assert mean_values(records, (weights,)) == pytest.approx([0.45 - 0.25])
    for bad in (None, math.nan):
        assert mean_values([a_record(run, points=((bad, -1.0),))], ("model_utility",)) is None
    longer = replace(a_record(run, points=((0.9, 0.0),)), spec={**run.to_json(), "epochs": 9})
    assert mean_values([*records, longer], ("model_utility",)) == [0.9]


def test_no_setting_of_a_small_space_is_suggested_twice(tmp_path: Path) -> None:
    rmu = a_config(tmp_path).methods[1].model_copy(update={"learning_rates": (1e-4,)})
    config = a_config(
        tmp_path, methods=(rmu,), search=SearchSettings(kind="optuna", trials=7, metric="ks_n")
    )
    _, search = searching(config, tmp_path)
    runs = drained(search)
    settings = {
        (r.method.hyperparameters["layer"], r.method.hyperparameters["steering"]) for r in runs
    }
    assert len(runs) == len(settings) == 7, "of eight"
    lines = (tmp_path / "search.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 7
    whole = config.model_copy(update={"search": SearchSettings(kind="optuna", trials=8)})
    assert len(make_plan(whole, "data").runs) == 8, "all of it needs no search"


def test_the_chosen_settings_follow_when_all_others_have_ended(tmp_path: Path) -> None:
    config = a_config(
        tmp_path,
        methods=(MethodGrid(specs=(method_spec("npo", {}),)),),
        learning_rates=(1e-5, 1e-4),
        search=SearchSettings(),
        select=SelectSettings(seeds=(1,)),
        seeds=(0, 1, 2),
    )
    plan = make_plan(config, "data")
    assert [run.seed for run in plan.runs] == [1, 1]
    start = a_record(plan.runs[0], points=())
    metrics = {"model_utility": 0.5, "log10_forget_quality": -9.0}
    epochs = (EpochResult(0, metrics, 0.0, 0.0),)
    write_record(replace(start, id="start", kind="fine-tuned", epochs=epochs), tmp_path)
    for run, quality in zip(plan.runs, (-5.0, -3.0), strict=True):
        write_record(a_record(run, points=((0.5, quality),)), tmp_path)
    ids = [run.id for run in plan.runs]
    follow_up = FollowUpRuns(plan, tmp_path)
    assert not follow_up.ready_to_select(ids[:1])
    assert follow_up.ready_to_select(ids)
    assert follow_up.current_plan().runs == plan.runs, "a question changes nothing"
    follow_up.select()
    more = follow_up.current_plan().runs[2:]
    assert [(run.learning_rate, run.seed) for run in more] == [(1e-4, 0), (1e-4, 2)]
    assert more == tuple(plan.runs[1].model_copy(update={"seed": seed}) for seed in (0, 2)), (
        "the same run but for its seed"
    )
