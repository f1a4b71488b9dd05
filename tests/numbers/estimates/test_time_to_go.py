"""Order and time to go, on sweeps whose durations are made up."""

import pytest

from tests.factories.clock import Clock
from unlearnbench.config.entries import attack_specs
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, RetainSpec, SweepConfig
from unlearnbench.results.time_to_go import EVALUATED, Forecast, cost, order_runs

KL = RetainSpec(term="kl")


def some_runs(
    *methods: str, fractions: tuple[float, ...] = (0.1,), rates: int = 2, models: int = 1
) -> tuple[RunSpec, ...]:
    specs = [method_spec(m.removesuffix("+kl"), {}, KL if "+" in m else None) for m in methods]
    config = SweepConfig(
        name="small",
        models=tuple(ModelSettings(name=f"tiny-{i}", base="tiny") for i in range(models)),
        forget_fractions=fractions,
        methods=tuple(MethodGrid(specs=(spec,)) for spec in specs),
        learning_rates=tuple(1e-5 * (i + 1) for i in range(rates)),
        epochs=2,
    )
    return make_plan(config, "data").runs


def test_time_to_go_from_measured_epochs() -> None:
    runs, clock = some_runs("npo", rates=4), Clock()
    forecast = Forecast(runs, 2, clock)
    assert forecast.to_go() is None
    for run in runs[:2]:
        forecast.begin(run)
    clock.now = 10.0
    forecast.observe(runs[0], 1, 10.0)
    assert forecast.to_go() == pytest.approx(10 + 20), "each slot ends its run and does another"
    clock.now = 15.0  # half of an epoch is over
    assert forecast.to_go() == pytest.approx(10 + 20), "the other run is as late as it can be"
    forecast.observe(runs[1], 1, 15.0)
    assert forecast.to_go() == pytest.approx(12.5 + 25)
    for run in runs[:3]:
        forecast.end(run)
    assert forecast.to_go() == pytest.approx(25)
    forecast.end(runs[3])
    assert forecast.to_go() == 0


def with_attacks(runs: tuple[RunSpec, ...], at: str) -> tuple[RunSpec, ...]:
    attacks = attack_specs({"relearning": {"at": at, "steps": [1, 2]}})
    return tuple(run.model_copy(update={"attacks": attacks}) for run in runs)


def test_attacks_on_the_last_model_are_counted_and_measured() -> None:
    runs, clock = with_attacks(some_runs("npo", rates=3), "last"), Clock()
    forecast = Forecast(runs, 1, clock)
    forecast.begin(runs[0])
    clock.now = 10.0
    forecast.observe(runs[0], 1, 10.0)
    # Before attacks are measured, each of the evaluations after 0, 1 and 2 steps counts as plain.
    seconds_of_cost = 10.0 / (cost(runs[0]) / 2)
    guessed = 3 * EVALUATED * seconds_of_cost
    assert forecast.to_go() == pytest.approx(10 + guessed + 2 * (20 + guessed))

    clock.now = 20.0
    forecast.observe(runs[0], 2, 10.0)
    clock.now = 20.0 + guessed / 2
    assert forecast.to_go() == pytest.approx(guessed / 2 + 2 * (20 + guessed))

    clock.now = 120.0
    assert forecast.to_go() == pytest.approx(2 * (20 + guessed)), "late, but not less than nothing"
    forecast.observe_last_attacks(runs[0], 100.0)
    forecast.end(runs[0])
    assert forecast.to_go() == pytest.approx(2 * (20 + 100))


def test_attacks_on_the_way_are_part_of_the_epochs() -> None:
    runs, clock = with_attacks(some_runs("npo", rates=2), "every"), Clock()
    forecast = Forecast(runs, 1, clock)
    forecast.begin(runs[0])
    for epoch in (1, 2):
        clock.now += 10.0
        forecast.observe(runs[0], epoch, 10.0)
    assert forecast.to_go() == pytest.approx(20)
    forecast.observe_last_attacks(runs[0], 0.5)
    forecast.end(runs[0])
    assert forecast.to_go() == pytest.approx(20)


def test_a_run_that_ends_early_says_nothing_about_attacks() -> None:
    """A run that has collapsed is not attacked, so its end takes no time."""
    runs, clock = with_attacks(some_runs("npo", rates=2), "last"), Clock()
    forecast = Forecast(runs, 1, clock)
    forecast.begin(runs[0])
    clock.now = 10.0
    forecast.observe(runs[0], 1, 10.0)
    expected = forecast.to_go()
    forecast.observe_last_attacks(runs[0], 0.0)
    assert forecast.to_go() == expected


def test_a_whole_run_of_an_earlier_command_includes_its_attacks() -> None:
    runs = with_attacks(some_runs("npo", rates=2), "last")
    forecast = Forecast(runs[1:], 1, Clock())
    forecast.learn(runs[0], 60.0)
    assert forecast.to_go() == pytest.approx(60)


def test_learns_from_runs_of_earlier_commands() -> None:
    runs = some_runs("ce-u", "npo+kl", rates=2)
    forecast = Forecast(runs[1:], 1, Clock())
    forecast.learn(runs[0], 20.0)
    others = 20.0 + 2 * 20.0 * cost(runs[2]) / cost(runs[0])
    assert forecast.to_go() == pytest.approx(others)


def test_order_by_model_kind_and_length() -> None:
    runs = some_runs("ce-u", "npo+kl", fractions=(0.1, 0.2), models=2)
    ordered = order_runs(["tiny-1", "tiny-0"], runs)
    order = [(r.model.name[-1], r.method.name, r.forget_fraction, r.learning_rate) for r in ordered]
    longest = [("npo", 0.2), ("npo", 0.1), ("ce-u", 0.2), ("ce-u", 0.1)]
    expected = [(model, *kind, rate) for model in "10" for rate in (1e-5, 2e-5) for kind in longest]
    assert order == expected
