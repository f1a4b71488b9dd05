"""Runs whose budget is in optimiser steps: the same training as by epochs, cut where steps say."""

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.config.entries import attack_spec
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import (
    EvaluationSettings,
    MethodGrid,
    Patience,
    RetainSpec,
    SweepConfig,
)
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record, read_record
from unlearnbench.runs import checkpoints, workspace
from unlearnbench.runs.checkpoints import RunState, state_folders
from unlearnbench.runs.run import run_epochs, run_single, stopped_record

from ...factories.marks import diagonals_in_make_test, some_in_make_test
from ..small_run import config_of, runs_of, without_times

STEPS_PER_EPOCH = 2
"""Six forget rows in batches of four."""
EPOCHS = 3
RATE = 1e-3
METHODS: dict[str, dict[str, Any]] = {
    "a reference": {"method": "npo"},
    "a retain term": {"method": "ce-u", "retain": RetainSpec(term="kl", weight=2.0)},
    "a state by epoch": {"method": "pdu"},
    "refusals drawn by epoch": {"method": "idk"},
    "other answers of the start model": {"method": "altpo"},
    "sampled answers": {"method": "grpo"},
    "a modifier": {"method": "npo", "modifiers": ("sam",)},
    "gradient accumulation": {"method": "npo", "training": {"micro_batch_size": 1}},
    "a cosine schedule": {
        "method": "npo",
        "training": {"schedule": "cosine", "warmup_steps": 2},
    },
    "TOFU's schedule": {"method": "npo", "training": {"schedule": "tofu", "batch_size": 3}},
}


def sweep(place: Path, *, by_steps: bool, method: str = "npo", **changes: Any) -> SweepConfig:
    """Three epochs, or as many steps."""
    values: dict[str, Any] = {"batch_size": 4, **changes.pop("training", {})}
    spec = method_spec(
        method, {}, changes.pop("retain", None), modifiers=changes.pop("modifiers", ())
    )
    evaluation: dict[str, Any] = {"rows": 4, "max_length": 96, **changes.pop("evaluation", {})}
    if by_steps:
        changes = {"epochs": None, "steps": EPOCHS * STEPS_PER_EPOCH, **changes}
        evaluation = {"every_steps": STEPS_PER_EPOCH, **evaluation}
    return config_of(
        place,
        methods=(MethodGrid(specs=(spec,)),),
        training=TrainingSettings(**values),
        evaluation=EvaluationSettings(**evaluation),
        **changes,
    )


def only_run(config: SweepConfig) -> RunSpec:
    (spec,) = runs_of(config)
    return spec


def folder_of(place: Path) -> Path:
    return place / "runs" / "small"


def carried_out(config: SweepConfig, place: Path) -> Record:
    run_single(only_run(config), config, folder_of(place), lambda _: None)
    return read_record(folder_of(place) / "records" / only_run(config).id)


def observations(record: Record) -> list[str]:
    """Hashes of the evaluations in their order: of every observation, to the last bit."""
    files: Any = record.evaluations
    return [files.files[moment].digest for moment in sorted(files.files)]


@pytest.mark.parametrize("kind", some_in_make_test(METHODS, 2))
def test_whole_epochs_of_steps_give_the_same_bits_as_epochs(kind: str, place: Path) -> None:
    changes = METHODS[kind]
    by_epochs = carried_out(sweep(place, by_steps=False, **changes), place)
    by_steps = carried_out(sweep(place, by_steps=True, **changes), place)
    assert by_epochs.id != by_steps.id, "what is a budget of six steps is none of six epochs"
    assert [result.epoch for result in by_epochs.epochs] == [1, 2, 3]
    assert [result.epoch for result in by_steps.epochs] == [2, 4, 6]
    assert [r.metrics for r in by_steps.epochs] == [r.metrics for r in by_epochs.epochs]
    assert by_steps.steps == by_epochs.steps, "loss, gradient, rate and epoch of each step"
    assert observations(by_steps) == observations(by_epochs)


def test_a_run_by_steps_is_evaluated_at_its_steps_and_at_its_end(place: Path) -> None:
    config = sweep(place, by_steps=True, steps=5, evaluation={"every_steps": 3})
    record = carried_out(config, place)
    assert [result.epoch for result in record.epochs] == [3, 5]
    assert [(step.step, step.epoch) for step in record.steps] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 3),
    ]
    through = carried_out(sweep(place, by_steps=True), place)
    losses = [step.loss for step in record.steps]
    assert losses == [step.loss for step in through.steps[:5]], "the same steps, wherever they end"
    last = carried_out(
        sweep(place, by_steps=True, steps=5, evaluation={"every_steps": None}), place
    )
    assert [result.epoch for result in last.epochs] == [5], "by default only the end is evaluated"


def test_the_learning_rate_decays_over_the_steps(place: Path) -> None:
    training = {"schedule": "linear"}
    record = carried_out(sweep(place, by_steps=True, steps=5, training=training), place)
    rates = [step.learning_rate / RATE for step in record.steps]
    assert rates == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


@pytest.fixture
def always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "COST", -1.0)


def cut(config: SweepConfig, place: Path, evaluations: int) -> None:
    """Begin a run, and leave it after some evaluations."""
    going = run_epochs(only_run(config), config, folder_of(place))
    for _ in range(evaluations):
        next(going)
    del going
    workspace.clear_workspaces()


@pytest.mark.usefixtures("always_saved")
@pytest.mark.parametrize(
    ("evaluations", "kind"),
    diagonals_in_make_test(2, (1, 2), ("a state by epoch", "a modifier", "sampled answers")),
)
def test_a_run_resumes_in_the_middle_of_an_epoch_with_equal_numbers(
    evaluations: int, kind: str, place: Path
) -> None:
    """Steps 3 and 6 are evaluated: the first of the second epoch, and the end of the third."""
    how: dict[str, Any] = {"by_steps": True, "steps": 7, "evaluation": {"every_steps": 3}}
    config = sweep(place, **how, **METHODS[kind])
    cut(config, place, evaluations)
    state, trainer = state_folders(folder_of(place), only_run(config).id)
    assert RunState.load(state, Unit.STEP).epoch == 3 * evaluations
    assert (trainer / "trainer.safetensors").is_file()
    resumed = carried_out(config, place)
    elsewhere = sweep(place, **how, **METHODS[kind], name="small-through")
    run_single(only_run(elsewhere), elsewhere, place / "runs" / "through", lambda _: None)
    through = read_record(place / "runs" / "through" / "records" / resumed.id)
    assert without_times(resumed) == without_times(through)
    assert observations(resumed) == observations(through)


@pytest.mark.usefixtures("always_saved")
def test_a_run_by_steps_is_saved_at_the_ends_of_epochs_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    save = RunState.save

    def noted(state: RunState, *args: Any) -> None:
        saved.append(state.epoch)
        save(state, *args)

    monkeypatch.setattr(RunState, "save", noted)
    carried_out(sweep(place, by_steps=True, steps=7, evaluation={"every_steps": 5}), place)
    assert [*dict.fromkeys(saved)] == [2, 4, 5, 6, 7]


def test_a_search_that_stops_a_run_by_steps_keeps_what_it_reached(place: Path) -> None:
    config = sweep(place, by_steps=True)
    cut(config, place, 2)
    record = stopped_record(only_run(config), config, folder_of(place))
    assert record is not None
    assert ([r.epoch for r in record.epochs], record.status) == ([2, 4], "stopped")


def test_patience_of_a_run_by_steps_is_in_steps(place: Path) -> None:
    rule = Patience(metric="model_utility", steps=3, min_delta=10.0)
    evaluation = {"every_steps": 1, "patience": rule}
    config = sweep(place, by_steps=True, evaluation=evaluation)
    record = carried_out(config, place)
    assert [result.epoch for result in record.epochs] == [1, 2, 3, 4]
    assert (record.ended or "").startswith("step 4: model_utility has not improved since step 1 (")


def test_attacks_meet_the_same_weights_as_by_epochs(place: Path) -> None:
    relearning = registry.load("attacks", "relearning")(steps=(1, 2), at="every")
    attacks = (attack_spec("relearning", relearning),)
    by_epochs = carried_out(sweep(place, by_steps=False, attacks=attacks), place)
    by_steps = carried_out(sweep(place, by_steps=True, attacks=attacks), place)
    assert [(r.epoch, r.variant) for r in by_steps.attacked] == [
        (STEPS_PER_EPOCH * r.epoch, r.variant) for r in by_epochs.attacked
    ]
    assert {r.epoch for r in by_steps.attacked} == {2, 4, 6}
    assert [r.metrics for r in by_steps.attacked] == [r.metrics for r in by_epochs.attacked]


def test_a_method_that_trains_nothing_has_one_run_whatever_the_unit(place: Path) -> None:
    by_epochs = only_run(sweep(place, by_steps=False, method=untrained()))
    config = sweep(place, by_steps=True, method=untrained())
    by_steps = only_run(config)
    assert by_steps.id == by_epochs.id
    shown: list[str] = []
    record = run_single(by_steps, config, folder_of(place), shown.append)
    assert [result.epoch for result in record.epochs] == [1]
    assert any(line.startswith("step 1: ") for line in shown)


def untrained() -> str:
    return next(name for name in registry.names("methods") if not registry.trains(name))


def test_splits_of_different_sizes_compare_at_equal_steps(place: Path) -> None:
    config = sweep(place, by_steps=True, forget_fractions=(0.25, 0.5))
    small, large = runs_of(config)
    assert small.evaluate_at == large.evaluate_at == (2, 4, 6)
    assert (small.schedule(3).epochs, large.schedule(6).epochs) == (6, 3)
    assert small.schedule(3).steps == large.schedule(6).steps == 6
