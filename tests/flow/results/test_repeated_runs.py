"""A finished run that has to be repeated is named in the plan, with the reason."""

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.results.records import EpochResult, run_record, write_record
from unlearnbench.results.repeated_runs import (
    OTHER_REASON,
    REASON_OF_FIELD,
    repeated_runs,
    repetition_lines,
)

# The fields of a run that a configuration states. All others need a reason for a change.
STATED = {
    *(
        "data",
        "model",
        "forget_fraction",
        "method",
        "learning_rate",
        "epochs",
        "steps",
        "evaluate_at",
    ),
    *("seed", "training", "evaluation", "attacks"),
}
OTHER_VALUES: dict[str, Any] = {
    "data_fingerprint": "other rows",
    "content": {"fine_tuned": "0123"},
    "template_digest": "4567",
    "leaves_out_label": True,
    "turn_digest": "89ab",
    "takes_roles_apart": True,
    "removes_dropout": True,
    "corrections": ("masks of llama4",),
    "starts_exactly": True,
    "profile_version": 2,
    "attack_training": {"precision": "bf16"},
    "after": "89ab",
}


def planned_runs(**changes: Any) -> tuple[RunSpec, ...]:
    settings: dict[str, Any] = {
        "name": "small",
        "models": (ModelSettings(name="a", base="tiny"),),
        "forget_fractions": (0.1,),
        "methods": (MethodGrid(specs=(method_spec("npo", {"beta": 0.1}),)),),
        "learning_rates": (1e-5, 2e-5),
        "epochs": 1,
        "seeds": (0, 1),
    }
    return make_plan(SweepConfig(**(settings | changes)), "rows").runs


def finish(runs: tuple[RunSpec, ...], folder: Path) -> None:
    for run in runs:
        epochs = (EpochResult(1, {"model_utility": 0.5}, 1.0, 1.0),)
        write_record(run_record(run, status="finished", epochs=epochs), folder)


def test_every_field_of_a_run_is_stated_or_has_a_reason() -> None:
    assert {*RunSpec.model_fields} == STATED | REASON_OF_FIELD.keys()
    assert OTHER_VALUES.keys() == REASON_OF_FIELD.keys()


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_a_change_of_an_input_names_the_reason(field: str, tmp_path: Path) -> None:
    new = planned_runs()
    old = tuple(run.model_copy(update={field: OTHER_VALUES[field]}) for run in new)
    finish(old[:3], tmp_path)
    repeated = repeated_runs(new, tmp_path)
    assert {each.run.id for each in repeated} == {run.id for run in new[:3]}
    assert {each.record_id for each in repeated} == {run.id for run in old[:3]}
    expected = f"3 finished runs will be repeated, because {REASON_OF_FIELD[field]}"
    assert repetition_lines(repeated) == [expected]


def test_a_secret_in_a_setting_does_not_hide_a_repeated_run(tmp_path: Path) -> None:
    """Records have no secrets, and the plan has them in memory."""
    method = method_spec("altpo", {"prefix": "see https://user:secret@example.org/x"})
    new = planned_runs(methods=(MethodGrid(specs=(method,)),))
    finish(tuple(run.model_copy(update={"template_digest": "4567"}) for run in new), tmp_path)
    assert len(repeated_runs(new, tmp_path)) == len(new)


def test_an_equal_specification_under_another_id_is_this_version_s_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = planned_runs(seeds=(0,), learning_rates=(1e-5,))
    with monkeypatch.context() as patch:
        # Records of a version whose ids had one more value.
        patch.setattr(RunSpec, "id", property(lambda run: f"{run.seed:016}"))
        finish(new, tmp_path)
    assert repetition_lines(repeated_runs(new, tmp_path)) == [
        f"1 finished run will be repeated, because {OTHER_REASON}"
    ]


def test_runs_of_another_setting_repeat_nothing(tmp_path: Path) -> None:
    finish(planned_runs(learning_rates=(1e-4,)), tmp_path)
    finish(
        planned_runs(methods=(MethodGrid(specs=(method_spec("npo", {"beta": 0.5}),)),)), tmp_path
    )
    assert not repeated_runs(planned_runs(), tmp_path)


@pytest.mark.parametrize(
    ("field", "chosen"),
    [
        ("removes_dropout", TrainingSettings(dropout="keep")),
        ("leaves_out_label", TrainingSettings(ignore_label=False)),
    ],
)
def test_a_setting_that_the_user_changes_repeats_nothing(
    field: str, chosen: TrainingSettings, tmp_path: Path
) -> None:
    """The reasons say what this version does now, and here it does the opposite."""
    finish(tuple(run.model_copy(update={field: True}) for run in planned_runs()), tmp_path)
    assert not repeated_runs(planned_runs(training=chosen), tmp_path)


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    new = planned_runs()
    old = tuple(run.model_copy(update={"template_digest": "4567"}) for run in new)
    finish((*old, *new), tmp_path)
    assert not repeated_runs(new, tmp_path)
    assert not repeated_runs(new, tmp_path / "missing")


def test_records_are_read_only_if_one_is_of_no_planned_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of start and retain models are in every folder."""
    new, other = planned_runs(), planned_runs(learning_rates=(1e-4,))
    finish((*new, other[0]), tmp_path)

    def refuse(_: Path) -> tuple[()]:
        raise AssertionError("the records were read")

    monkeypatch.setattr("unlearnbench.results.repeated_runs.read_records", refuse)
    assert repeated_runs(new, tmp_path, [other[0].id]) == ()
    with pytest.raises(AssertionError):
        repeated_runs(new, tmp_path)


def test_two_reasons_stand_in_one_line(tmp_path: Path) -> None:
    new = planned_runs(seeds=(0,), learning_rates=(1e-5,))
    changes = {"template_digest": "4567", "profile_version": 2}
    finish(tuple(run.model_copy(update=changes) for run in new), tmp_path)
    assert repetition_lines(repeated_runs(new, tmp_path)) == [
        f"1 finished run will be repeated, because {REASON_OF_FIELD['template_digest']} "
        f"and {REASON_OF_FIELD['profile_version']}"
    ]
