"""Searches through a real Ray: as many trials for each method, resumed, stopped early, chosen."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.flow.sweep.shown_sweep import sweep
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.resources import RaySettings, TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.config.search import Range, Scheduler, SearchSettings, SelectSettings
from unlearnbench.report.report import finish
from unlearnbench.results.records import EpochResult, Record, read_records, run_record, write_record
from unlearnbench.sweep.follow_up_runs import FollowUpRuns
from unlearnbench.sweep.optuna_search import OptunaStudy
from unlearnbench.sweep.pipeline import Pipeline

pytestmark = pytest.mark.long


def a_config(output: Path, **changes: Any) -> SweepConfig:
    npo = method_spec("npo", {"beta": 0.1})
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,),
        methods=(
            MethodGrid(specs=(npo,), ranges={"beta": Range(low=0.1, high=1.0)}),
            MethodGrid(specs=(method_spec("ce-u", {}),)),
        ),
        learning_rates=Range(low=1e-6, high=1e-3, log=True),
        epochs=3,
        ray=RaySettings(concurrent=2),
        tracking=TrackingSettings(enabled=False),
        output=str(output),
    )
    return config.model_copy(update=changes)


def fake_pipeline(marks: Path, fail_above: float = 1.0) -> Pipeline:
    """Runs that take no time, better the nearer their rate is to 1e-4; an open one leaves a mark.

    fail_above  a rate from which on a run fails
    """
    marks.mkdir(exist_ok=True)
    profile = get_profile("tofu").id

    def plan(config: SweepConfig) -> Plan:
        return make_plan(config, "data")

    def tasks(_config: SweepConfig, _runs: Sequence[RunSpec], folder: Path) -> tuple[()]:
        metrics = {"model_utility": 0.95, "log10_forget_quality": -12.0}
        start = EpochResult(0, metrics, 0.0, 0.0)
        write_record(
            Record(
                id="start",
                kind="fine-tuned",
                model="tiny",
                forget_fraction=0.1,
                method="fine-tuned",
                learning_rate=None,
                seed=0,
                spec={},
                status="finished",
                profile=profile,
                epochs=(start,),
            ),
            folder,
        )
        return ()

    def run_epochs(run: RunSpec, _config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        from math import log10

        rate = run.learning_rate or 0.0
        for kind in ("was", "open"):
            (marks / f"{kind}.{run.id}.{os.getpid()}").touch()
        if rate > fail_above:
            (marks / f"open.{run.id}.{os.getpid()}").unlink()
            raise ValueError("too fast")
        results: list[EpochResult] = []
        try:
            for epoch in range(1, run.budget + 1):
                utility = 1 - 0.1 * epoch * abs(log10(rate) + 4) - 0.2 * run.seed
                metrics = {
                    "model_utility": utility,
                    "log10_forget_quality": -10.0 + epoch + run.seed,
                }
                results.append(EpochResult(epoch, metrics, 0.0, 0.0))
                yield results[-1]
            found: dict[str, Any] = {"status": "finished", "profile": profile, "provenance": {}}
            write_record(run_record(run, epochs=tuple(results), **found), folder)
        finally:
            (marks / f"open.{run.id}.{os.getpid()}").unlink()

    def execute(_task: Any, _config: SweepConfig, _folder: Path) -> float:
        return 0.0

    return Pipeline(plan, tasks, execute, run_epochs, finish)


def runs_in(folder: Path) -> list[Record]:
    return [record for record in read_records(folder) if record.kind == "run"]


def states_of(study: OptunaStudy) -> list[tuple[str, list[float] | None]]:
    """State and values of the trials, in their order."""
    return [(trial.state.name, trial.values) for trial in study.optuna.trials]


def trial_states(
    config: SweepConfig, folder: Path
) -> dict[str, list[tuple[str, list[float] | None]]]:
    """The trials of a further command's studies, by method."""
    stages = FollowUpRuns(make_plan(config, "data"), folder)
    known = {record.id: record for record in runs_in(folder)}
    return {
        study.space.base.name: states_of(OptunaStudy(study, config.search, known))
        for study in stages.studies
    }


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_optuna_gives_each_method_its_trials_and_resumes(tmp_path: Path) -> None:
    search = SearchSettings(kind="optuna", trials=2)
    how = RaySettings(concurrent=2, retries=0)
    config = a_config(tmp_path / "out", search=search, seeds=(0, 1), ray=how)
    marks = tmp_path / "marks"
    result, lines = sweep(config, fake_pipeline(marks, fail_above=1e-5))
    assert "running: 8 runs, 2 at a time" in lines
    first = runs_in(result.folder)
    assert Counter(r.method for r in first) == {"npo": 4, "ce-u": 4}
    failed = {r.id for r in first if r.status == "failed"}
    assert failed == {r.id for r in first if (r.learning_rate or 0) > 1e-5}
    assert failed
    assert (result.total, result.finished, result.failed) == (8, 8 - len(failed), len(failed))
    states = trial_states(config, result.folder)
    for method, trials in states.items():
        for (state, values), point in zip(trials, points(first, method, config), strict=True):
            runs = [r for r in first if (r.method, r.learning_rate) == (method, point)]
            assert {r.seed for r in runs} == {0, 1}, "a setting is run on all seeds"
            if state == "FAIL":
                assert {r.id for r in runs} <= failed
            else:
                assert state == "COMPLETE"
                assert values == pytest.approx(worth(point))

    # More trials: what failed is run again, earlier settings stay, one is suggested.
    more = config.model_copy(update={"search": search.model_copy(update={"trials": 3})})
    result, _ = sweep(more, fake_pipeline(marks))
    records = runs_in(result.folder)
    assert (result.total, result.finished, result.failed) == (12, 12, 0)
    assert Counter(r.method for r in records) == {"npo": 6, "ce-u": 6}
    assert {r.id for r in first} < {r.id for r in records}
    plan = json.loads((result.folder / "plan.json").read_text(encoding="utf-8"))
    assert {run["id"] for run in plan["runs"]} == {r.id for r in records}
    for method, trials in trial_states(more, result.folder).items():
        assert [values for _, values in trials] == [
            pytest.approx(worth(point)) for point in points(records, method, more)
        ]
    assert len((result.folder / "search.jsonl").read_text(encoding="utf-8").splitlines()) == 6


def points(records: list[Record], method: str, config: SweepConfig) -> list[float]:
    """Rates of a method's settings, in the order in which they were suggested."""
    folder = Path(config.output) / config.name
    lines = map(json.loads, (folder / "search.jsonl").read_text(encoding="utf-8").splitlines())
    rates = [line["learning_rate"] for line in lines if line["method"]["name"] == method]
    assert set(rates) == {r.learning_rate for r in records if r.method == method}
    return rates


def worth(rate: float) -> list[float]:
    """The means of seeds 0 and 1 after epoch 3."""
    return [1 - 0.3 * abs(math.log10(rate) + 4) - 0.1, -6.5]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_weak_runs_are_stopped_and_the_best_run_on_the_other_seeds(tmp_path: Path) -> None:
    rates = (5e-5, 1e-6, 2e-5, 1e-4)
    scheduler = Scheduler(metric="model_utility", reduction=2)
    config = a_config(
        tmp_path / "out",
        methods=tuple(MethodGrid(specs=(method_spec(name, {}),)) for name in ("npo", "ce-u")),
        learning_rates=rates,
        search=SearchSettings(scheduler=scheduler),
        select=SelectSettings(utility=0.5),
        seeds=(0, 1, 2),
        ray=RaySettings(concurrent=1),
    )
    marks = tmp_path / "marks"
    result, lines = sweep(config, fake_pipeline(marks))
    records = runs_in(result.folder)
    chosen_on = [r for r in records if r.seed == 0]
    assert len(chosen_on) == 8, "all settings on the seed of the choice"
    # In their order: the first continues, the worst is stopped, the third is above the median of
    # two after epoch 1 and below the first after epoch 2, the best continues.
    status = {(r.method, r.learning_rate): (r.status, len(r.epochs)) for r in chosen_on}
    for method in ("npo", "ce-u"):
        found = [status[method, rate] for rate in rates]
        assert found == [("finished", 3), ("stopped", 1), ("stopped", 2), ("finished", 3)]
    assert sum("stopped" in line for line in lines) == 4
    assert not list(marks.glob("open.*")), "what is stopped is closed before the next run"
    workers = {path.name.split(".")[2] for path in marks.glob("was.*")}
    assert len(workers) == 2, "one process for the first stage and one for the second"
    others = [(r.method, r.learning_rate, r.seed) for r in records if r.seed > 0]
    assert sorted(others) == [
        ("ce-u", 1e-4, 1),
        ("ce-u", 1e-4, 2),
        ("npo", 1e-4, 1),
        ("npo", 1e-4, 2),
    ]
    assert (result.total, result.finished, result.failed) == (12, 8, 0)
    assert result.count("stopped") == 4

    found = json.loads((result.folder / "selection.json").read_text(encoding="utf-8"))
    assert (found["chosen_on_seeds"], found["reported_on_seeds"]) == ([0], [1, 2])
    ceu, npo = found["choices"]
    assert [c["method"] for c in (ceu, npo)] == ["ce-u", "npo"]
    assert (ceu["learning_rate"], ceu["epoch"], ceu["candidates"]) == (1e-4, 3, 4)
    assert ceu["log10_forget_quality"] == -7.0, "seed 0's, whose numbers the choice is made by"
    assert ceu["reported"]["seeds"] == [1, 2]
    quality = {"mean": -5.5, "standard_deviation": pytest.approx(0.5**0.5)}
    assert ceu["reported"]["log10_forget_quality"] == quality

    # Without the scheduler what it stopped is run to its end; what was chosen stays.
    grid = config.model_copy(update={"search": SearchSettings()})
    result, lines = sweep(grid, fake_pipeline(marks))
    assert "running: 4 runs, 1 at a time, 4 done already" in lines
    records = runs_in(result.folder)
    assert {(r.status, len(r.epochs)) for r in records} == {("finished", 3)}
    assert not list((result.folder / "records").glob("*.stopped"))
    again = json.loads((result.folder / "selection.json").read_text(encoding="utf-8"))
    for choice in (*again["choices"], *found["choices"]):
        del choice["tuning"]  # of all trials, of which more have ended
    assert again == found
