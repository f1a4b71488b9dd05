"""Budgets in epochs or in steps: what a configuration may state, and the runs that are planned."""

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.errors import ConfigError
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.schema import EvaluationSettings, Patience
from unlearnbench.config.search import Scheduler
from unlearnbench.config.step_schedule import ScheduleName, make_schedule
from unlearnbench.config.unit import Unit, budget_of_spec
from unlearnbench.results.records import run_record
from unlearnbench.results.run_settings import run_settings
from unlearnbench.results.time_to_go import Forecast, cost
from unlearnbench.sweep.halving import GroupKey, HalvingByGroup, moments_of_halving

from .test_plan import config

BY_STEPS = """
name: mine
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [npo]
steps: 125
evaluation: {every_steps: 25}
"""


def by_steps(steps: int = 125, every: int | None = 25, **changes: Any) -> Plan:
    evaluation = EvaluationSettings(every_steps=every)
    return make_plan(config(epochs=None, steps=steps, evaluation=evaluation, **changes), "f")


def problems(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(str(tmp_path / "mine.yaml"), overrides)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


def test_a_configuration_by_steps_has_no_epochs(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(BY_STEPS, encoding="utf-8")
    made = load_config(str(tmp_path / "mine.yaml"), ())
    assert (made.unit, made.budget, made.epochs) == (Unit.STEP, 125, None)
    assert made.evaluate_at == (25, 50, 75, 100, 125)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "epochs=5",
            "steps: epochs are stated as well, and a run has one budget; leave one of the two out "
            "(null, where another file has it)",
        ),
        (
            "evaluation.every=1",
            "evaluation.every: counts epochs, and the budget of this sweep is in steps; state "
            "evaluation.every_steps in place of this (null, where another file has it)",
        ),
        (
            "steps=null",
            "evaluation.every_steps: counts steps, and the budget of this sweep is in epochs; "
            "state steps in place of epochs, or evaluation.every in place of this",
        ),
        (
            "evaluation.patience={metric: model_utility, epochs: 2}",
            "evaluation.patience.epochs: counts epochs, and the budget of this sweep is in steps; "
            "state the patience in steps",
        ),
    ],
)
def test_two_units_in_one_configuration_are_an_error(
    override: str, expected: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, BY_STEPS, override) == [expected]


def test_patience_in_steps_needs_a_budget_in_steps(tmp_path: Path) -> None:
    rule = "evaluation.patience={metric: model_utility, steps: 2}"
    overrides = ("steps=null", "evaluation.every_steps=null", rule)
    assert problems(tmp_path, BY_STEPS, *overrides) == [
        "evaluation.patience.steps: counts steps, and the budget of this sweep is in epochs; "
        "state the patience in epochs"
    ]


def test_a_configuration_without_a_budget_is_an_error(tmp_path: Path) -> None:
    without = BY_STEPS.replace("steps: 125\n", "epochs: null\n").replace(
        "evaluation: {every_steps: 25}\n", ""
    )
    assert problems(tmp_path, without) == [
        "epochs: is null, and there are no steps: state epochs or steps"
    ]


def test_null_leaves_out_what_another_file_has(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "extends: quickstart\nname: mine\nepochs: null\nsteps: 12\n"
        "evaluation: {every: null, every_steps: 4}\nmethods: [npo]\n",
        encoding="utf-8",
    )
    assert load_config(str(tmp_path / "mine.yaml"), ()).evaluate_at == (4, 8, 12)


def test_ids_tell_the_units_apart() -> None:
    steps = by_steps(steps=3, every=1)
    epochs = make_plan(config(epochs=3), "f")
    assert {run.evaluate_at for run in (*steps.runs, *epochs.runs)} == {(1, 2, 3)}
    assert not {run.id for run in steps.runs} & {run.id for run in epochs.runs}
    records = [run_record(plan.runs[0], status="failed") for plan in (steps, epochs)]
    settings = {value.id for value in run_settings(records).values()}
    assert len(settings) == 2, "and means over seeds do not mix them"
    assert "steps" not in epochs.runs[0].to_json(), "as in records from before there were steps"
    assert budget_of_spec(steps.runs[0].to_json()) == 3


def test_epochs_as_runs_has_a_run_for_each_evaluated_step() -> None:
    apart = by_steps(epochs_as="runs")
    assert {(run.steps, run.evaluate_at) for run in apart.runs} == {
        (n, (n,)) for n in (25, 50, 75, 100, 125)
    }
    once = make_plan(config(epochs=25, evaluation=EvaluationSettings(every=25)), "f")
    records = [run_record(run, status="failed") for run in (apart.runs[0], once.runs[0])]
    assert len({value.id for value in run_settings(records).values()}) == 2


def test_a_run_is_named_by_its_steps() -> None:
    assert " · 125 steps · " in by_steps().runs[0].title
    assert " · 1 step · " in by_steps(steps=1).runs[0].title


@pytest.mark.parametrize("name", ["constant", "tofu"])
@pytest.mark.parametrize("rows", [40, 64, 100])
def test_whole_epochs_of_steps_are_the_schedule_of_epochs(name: ScheduleName, rows: int) -> None:
    by_epochs = make_schedule(name, rows, 32, epochs=3, warmup_steps=2)
    same = make_schedule(name, rows, 32, most_steps=by_epochs.steps, warmup_steps=2)
    assert (same.steps, same.epochs, same.rows_drawn) == (
        by_epochs.steps,
        3,
        by_epochs.rows_drawn,
    )
    for step in range(same.steps):
        assert same.positions(step) == by_epochs.positions(step)
        assert same.factor(step) == by_epochs.factor(step)
        assert same.epoch_of(step) == by_epochs.epoch_of(step)


def test_a_schedule_of_steps_may_end_within_an_epoch() -> None:
    schedule = make_schedule("linear", 100, 32, most_steps=6)
    assert (schedule.steps_per_epoch, schedule.epochs, schedule.steps) == (4, 2, 6)
    assert [schedule.end(epoch) for epoch in (1, 2)] == [4, 6]
    assert [schedule.epoch_of(step) for step in range(6)] == [1, 1, 1, 1, 2, 2]
    assert [schedule.epochs_ended(steps) for steps in range(7)] == [0, 0, 0, 0, 1, 1, 2]
    assert schedule.rows_drawn == 100 + 2 * 32
    assert schedule.factor(5) == pytest.approx(1 / 6)


def test_patience_in_steps_counts_from_the_last_improvement() -> None:
    rule = Patience(metric="model_utility", steps=50)
    values = [(25, 0.5), (50, 0.6), (75, 0.6)]
    assert rule.ended(((step, {"model_utility": v}) for step, v in values), "higher") is None
    ended = rule.ended(
        ((step, {"model_utility": v}) for step, v in [*values, (100, 0.4)]), "higher"
    )
    assert ended == (
        "step 100: model_utility has not improved since step 50 (0.6) (evaluation.patience)"
    )


def test_halving_stops_no_run_before_its_first_evaluation_or_at_its_last(tmp_path: Path) -> None:
    moments = moments_of_halving(by_steps().config)
    assert moments == (25, 101)
    scheduler = Scheduler(metric="model_utility")
    halving = HalvingByGroup(scheduler, moments, {}, tmp_path, lambda _: "")
    (bracket,) = halving.groups[GroupKey("tiny", 0.1, "npo", "")]._brackets
    assert [rung for rung, _ in bracket._rungs] == [75, 25]
    assert moments_of_halving(config()) == (1, 3), "by epochs as ever"


def test_the_time_to_go_of_runs_by_steps_grows_with_their_steps() -> None:
    short, long = by_steps(steps=25).runs[0], by_steps(steps=100).runs[0]
    assert cost(long) > cost(short)
    now = [0.0]
    forecast = Forecast([long], 1, lambda: now[0])
    forecast.begin(long)
    now[0] = 25.0
    forecast.observe(long, 25, 25.0)
    assert forecast.to_go() == pytest.approx(75.0)
    now[0] = 45.0
    assert forecast.to_go() == pytest.approx(55.0), "the steps since are counted by the clock"
