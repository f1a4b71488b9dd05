"""Runs without Ray, from a configuration to records: prepared once, resumed exactly, never lost."""

import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.base.hashing import document_hash
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import (
    EvaluationSettings,
    MethodGrid,
    RetainSpec,
)
from unlearnbench.results.finalize import inputs_entry, table_of
from unlearnbench.results.records import read_record, read_records, write_record
from unlearnbench.results.rules import rules_of
from unlearnbench.results.setting_value import SettingValue
from unlearnbench.runs import workspace
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.run import Run, run_epochs, run_single, stopped_record
from unlearnbench.training.step_passes import StepPasses
from unlearnbench.training.trainer import Trainer

from ..integration.test_determinism import ON, REPEATS, Flags, flags
from ..small_run import config_of, runs_of, without_times


def test_a_run_becomes_a_record(place: Path) -> None:
    config = config_of(place)
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    lines: list[str] = []
    record = run_single(spec, config, folder, lines.append)
    assert record.id == spec.id
    assert record.status == "finished"
    assert [epoch.epoch for epoch in record.epochs] == [1, 2, 3]
    assert [step.step for step in record.steps] == list(range(1, 7))
    assert record.evaluations[3].sets["forget"].questions
    assert record.spec["learning_rate"] == 1e-3
    assert (folder / "records" / spec.id).is_dir()
    assert not (folder / "state" / spec.id).exists()
    made = record.provenance
    assert 0 < made["estimated_memory_mib"] < 4096
    # A sweep of this model, which is hardly trained, would stop.
    assert lines[0].startswith("warning: tiny: the start model has not learned the forget rows")
    assert len(lines) == 1 + 3, "an epoch, a line"
    assert run_single(spec, config, folder, lines.append) == record
    assert len(lines) == 1 + 3, "a finished run is not run again"
    shutil.rmtree(folder / "records" / spec.id)
    shutil.rmtree(place / "cache" / "reference")
    workspace.clear_workspaces()
    again = run_single(spec, config, folder, lines.append)
    assert without_times(again) == without_times(record), "the same numbers"


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_all_training_since_the_last_evaluation_is_counted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs, the third is evaluated; the process that trained the first is gone."""
    config = config_of(place, evaluation=EvaluationSettings(rows=4, max_length=96, every=3))
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    epoch, trained = Trainer.epoch, list[int]()

    def slow(self: Trainer, number: int) -> Any:
        if trained == [1]:
            trained.append(0)
            raise OSError("this process dies")
        trained.append(number)
        time.sleep(0.5)
        return epoch(self, number)

    monkeypatch.setattr(Trainer, "epoch", slow)
    with pytest.raises(OSError, match="dies"):
        list(run_epochs(spec, config, folder))
    (result,) = run_epochs(spec, config, folder)
    assert trained == [1, 0, 2, 3]
    assert result.training_seconds >= 3 * 0.5


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("altpo", {"alternatives": 2, "max_new_tokens": 12}),
        ("grpo", {"samples": 2, "max_new_tokens": 8, "beta": 0.1}),
    ],
)
def test_a_method_may_train_on_what_models_say(
    place: Path, name: str, values: dict[str, Any]
) -> None:
    config = config_of(place, methods=(MethodGrid(specs=(method_spec(name, values),)),), epochs=2)
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    through = run_single(spec, config, folder, lambda _: None)
    assert through.status == "finished"
    kept = [*(place / "cache").glob("alternatives/*.json")]
    assert len(kept) == (name == "altpo")
    rewards = [step.reported.get("reward") for step in through.steps]
    assert all(r is not None and 0 <= r <= 1 for r in rewards) == (name != "altpo")
    shutil.rmtree(folder / "records" / spec.id)
    interrupted = run_epochs(spec, config, folder)
    next(interrupted)
    del interrupted
    resumed = run_single(spec, config, folder, lambda _: None)
    assert without_times(resumed) == without_times(through)


def test_a_method_that_trains_nothing_is_judged_once(place: Path) -> None:
    grid = MethodGrid(specs=tuple(method_spec("eco", {"sigma": s}) for s in (0.0, 30.0)))
    config = config_of(place, methods=(grid,), learning_rates=(1e-3, 1e-2))
    plain, noisy = runs_of(config)
    assert plain.title == "eco · tiny · forget 0.5 · seed 0"
    folder = place / "runs" / "small"
    lines: list[str] = []
    one, other = (run_single(run, config, folder, lines.append) for run in (plain, noisy))
    assert [line.partition(":")[0] for line in lines] == ["warning", "epoch 1"] * 2
    for record in (one, other):
        assert record.status == "finished"
        assert record.learning_rate is None
        assert record.steps == ()
        assert [epoch.epoch for epoch in record.epochs] == [1]
    (start,) = (r for r in read_records(folder) if r.kind == "fine-tuned")
    assert one.epochs[0].metrics == start.epochs[0].metrics, "no noise, no change"
    said = [r.evaluations[1].sets["forget"] for r in (one, other)]
    assert (said[0].answer_loss != said[1].answer_loss).any()
    shutil.rmtree(folder / "records" / noisy.id)
    again = run_single(noisy, config, folder, lines.append)
    assert without_times(again) == without_times(other)
    rows = [row for row in table_of(read_records(folder)).rows if row.kind == "run"]
    assert [(row.method, row.learning_rate, row.epoch) for row in rows] == [
        ("eco (sigma=0)", None, 1),
        ("eco (sigma=30)", None, 1),
    ]


def test_a_run_that_collapses_is_kept_as_collapsed(place: Path) -> None:
    config = config_of(
        place,
        methods=(MethodGrid(specs=(method_spec("gradient-ascent", {}),)),),
        learning_rates=(1e30,),
    )
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    record = run_single(spec, config, folder, lambda _: None)
    assert record.status == "collapsed"
    assert re.match(r"(NaN|infinite) (loss|gradient) at step \d+ \(epoch 1\)", record.error or "")
    assert (folder / "records" / spec.id).is_dir(), "it would collapse again"


def set_start_utility(folder: Path, utility: float) -> None:
    (start,) = (r for r in read_records(folder) if r.kind == "fine-tuned")
    path = folder / "records" / start.id / "record.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    held["epochs"][0]["metrics"]["model_utility"] = utility
    held["sha256"] = document_hash(held)
    path.write_text(json.dumps(held), encoding="utf-8")


def test_a_run_whose_utility_falls_too_far_ends_there(place: Path) -> None:
    grid = MethodGrid(specs=(method_spec("gradient-ascent", {}),))
    config = config_of(place, methods=(grid,), learning_rates=(1e-1,))
    folder = place / "runs" / "small"
    (spec,) = runs_of(config)
    whole = run_single(spec, config, folder, lambda _: None)
    assert [e.epoch for e in whole.epochs] == [1, 2, 3], "no rule, no end"
    evaluation = config.evaluation.model_copy(update={"stop_below": 0.9})
    strict = config.model_copy(update={"evaluation": evaluation})
    (ruled,) = runs_of(strict)
    assert ruled.id != spec.id, "its epochs are others"
    set_start_utility(folder, 0.625)  # a model that has learned something would have so much
    record = run_single(ruled, strict, folder, lambda _: None)
    assert record.status == "collapsed"
    assert record.epochs[0].metrics == whole.epochs[0].metrics
    assert len(record.epochs) == 1
    fallen = record.epochs[0].metrics["model_utility"] or 0.0
    assert record.error == (
        f"epoch 1: Model Utility {fallen:.4g} is below 0.5625, which is 0.9 of the "
        "start model's 0.625 (evaluation.stop_below)"
    )
    assert not (folder / "state" / ruled.id).exists()


def test_a_run_that_is_stopped_leaves_a_record(place: Path) -> None:
    config = config_of(place)
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    assert stopped_record(spec, config, folder) is None, "it has not begun"
    going = run_epochs(spec, config, folder)
    reached = [next(going), next(going)]
    going.close()  # type: ignore[attr-defined]
    stopped = stopped_record(spec, config, folder)
    assert stopped is not None
    assert stopped.status == "stopped"
    assert list(stopped.epochs) == reached
    assert [step.step for step in stopped.steps] == [1, 2, 3, 4]
    kept = write_record(stopped, folder)
    references = [record for record in read_records(folder) if record.kind != "run"]
    key = rules_of([stopped]).of(stopped).key
    by_todays_rules = inputs_entry(key, stopped, references)
    assert by_todays_rules.items() <= stopped.provenance.items()
    shutil.rmtree(folder / "state" / spec.id)
    whole = run_single(spec, config, folder, lambda _: None)
    assert not kept.exists()
    assert without_times(whole).epochs[:2] == without_times(stopped).epochs
    assert whole.steps[:4] == stopped.steps
    assert whole.provenance["weights"] == stopped.provenance["weights"]
    answers = stopped.evaluations[2].sets["forget"].generated
    assert answers
    assert whole.evaluations[2].sets["forget"].generated == answers


def test_a_retain_log_serves_in_place_of_a_retain_model(place: Path) -> None:
    from unlearnbench.evaluation.observation_file import write_observations

    config = config_of(place)
    (anchor,) = (r for r in read_records(place / "runs" / "small") if r.kind == "retain")
    log = place / "retain50.safetensors"
    write_observations(anchor.evaluations[0], log)
    model = config.models[0].model_copy(update={"retain": {"retain50": str(log)}})
    given = config_of(place, models=(model,), name="given")
    folder = place / "runs" / "given"
    tasks = preparation_tasks(given, runs_of(given), folder)
    assert "tiny/retain50" not in {task.id for task in tasks}
    for task in tasks:
        execute_task(task, given, folder)
    (again,) = (r for r in read_records(folder) if r.kind == "retain")
    own, there = again.epochs[0].metrics, anchor.epochs[0].metrics
    assert there["exact_memorization_forget"] is not None
    assert own == there


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_run_with_modifiers_is_resumed_with_the_same_numbers(place: Path) -> None:
    files = [
        Path(__file__).parents[2] / "contracts" / f"{name}.py" for name in ("sharpness", "mask")
    ]
    names = [registry.register_file(file) for file in files]
    spec = method_spec("npo", {"sharpness.rho": 0.1}, RetainSpec(term="nll"), names)
    config = config_of(place, methods=(MethodGrid(specs=(spec,)),))
    (run,) = runs_of(config)
    folder = place / "runs" / "small"
    undisturbed = run_single(run, config, folder, lambda _: None)
    assert undisturbed.method == "npo+nll+mask+sharpness"
    setting = SettingValue.of(undisturbed.spec["method"])
    assert setting.modifiers == {"mask": {"times": 1.0}, "sharpness": {"rho": 0.1}}
    shutil.rmtree(folder / "records" / run.id)
    interrupted = run_epochs(run, config, folder)
    next(interrupted)
    del interrupted
    again = run_single(run, config, folder, lambda _: None)
    assert without_times(again) == without_times(undisturbed)


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_run_that_goes_on_under_other_settings_of_metrics_has_their_numbers(place: Path) -> None:
    def config(share: float) -> Any:
        chosen: Any = {"metrics": {"mia-min-k": {"share": share}}}
        return config_of(place, evaluation=EvaluationSettings(rows=4, max_length=96, **chosen))

    folder, (spec,) = place / "runs" / "small", runs_of(config(1.0))
    fresh = run_single(spec, config(1.0), folder, lambda _: None)
    shutil.rmtree(folder / "records" / spec.id)
    interrupted = run_epochs(spec, config(0.05), folder)
    before, wanted = next(interrupted).metrics, fresh.epochs[0].metrics
    del interrupted
    assert before != wanted, "or this tests nothing"
    again = run_single(spec, config(1.0), folder, lambda _: None)
    assert without_times(again) == without_times(fresh)


class Crowded(StepPasses):
    """On a device where at most two rows fit at a time."""

    def backward(self, rows: Any, *given: Any, **how: Any) -> Any:
        size = self.oom_retry.rows or len(rows.items)
        CROWDED.append((rows.step + 1, size))
        if size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().backward(rows, *given, **how)


CROWDED: list[tuple[int, int]] = []
"""Steps and rows at a time that were tried."""


def test_what_did_not_fit_is_in_the_record_and_not_tried_again(place: Path) -> None:
    config = config_of(place)
    (spec,) = runs_of(config)
    folder = place / "runs" / "small"
    undisturbed = run_single(spec, config, folder, lambda _: None)
    assert "out_of_memory" not in undisturbed.provenance
    shutil.rmtree(folder / "records" / spec.id)
    CROWDED.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unlearnbench.training.trainer.StepPasses", Crowded)
        interrupted = run_epochs(spec, config, folder)
        next(interrupted)
        del interrupted
        record = run_single(spec, config, folder, lambda _: None)
    assert CROWDED[:2] == [(1, 4), (1, 2)]
    assert [rows for _, rows in CROWDED[1:]] == [2] * 6, "neither later nor after a resumption"
    assert record.provenance["out_of_memory"] == [{"step": 1, "from": 4, "to": 2}]
    for one, other in zip(undisturbed.epochs, record.epochs, strict=True):
        assert _defined(one.metrics) == pytest.approx(_defined(other.metrics), rel=1e-3)
    for first, second in zip(undisturbed.steps, record.steps, strict=True):
        assert first.loss == pytest.approx(second.loss, rel=1e-4)
    assert not (folder / "state" / spec.id).exists()


def _defined(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}


class TestARepeatableRun:
    def test_is_carried_out_under_the_flags_with_equal_numbers(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, before = place / "runs" / "small", flags()
        (plain,) = runs_of(config_of(place))
        expected = run_single(plain, config_of(place), folder, lambda _: None)

        seen: list[tuple[str, Flags]] = []

        def note(owner: type, name: str) -> None:
            own: Any = getattr(owner, name)

            def noted(*args: Any) -> Any:
                seen.append((name, flags()))
                return own(*args)

            monkeypatch.setattr(owner, name, noted)

        note(Trainer, "_step")
        note(Run, "_evaluate")
        how = config_of(place, training=REPEATS)
        (spec,) = runs_of(how)
        epochs: list[int] = []
        for result in run_epochs(spec, how, folder):
            assert flags() == before, "suspended, the process does something else"
            epochs.append(result.epoch)
        assert epochs == [1, 2, 3]
        assert {name for name, _ in seen} == {"_step", "_evaluate"}
        assert {state for _, state in seen} == {ON}
        found = without_times(read_record(folder / "records" / spec.id))
        wanted = without_times(expected)
        assert found.epochs == wanted.epochs
        assert found.steps == wanted.steps


def test_metrics_on_request_are_observed_and_reported(place: Path) -> None:
    """Metrics of the start model, the retain model and the run, whose id stays the same."""
    chosen: Any = {"fluency": {}, "mia-grad-norm": {}}
    plain = config_of(place, epochs=1)
    evaluation = EvaluationSettings(rows=4, max_length=96, metrics=chosen)
    config = config_of(place, epochs=1, evaluation=evaluation, output=str(place / "other"))
    (spec,) = runs_of(config)
    assert [spec.id] == [run.id for run in runs_of(plain)]
    folder = place / "other" / "small"
    tasks = preparation_tasks(config, [spec], folder)
    after = next(task.after for task in tasks if task.id == "tiny/retain50@0.5")
    assert {"tiny/retain50", "tiny/full"} == {*after}
    record = run_single(spec, config, folder, lambda _: None)
    rows = {row.kind: row for row in table_of(read_records(folder), chosen).rows}
    for row in rows.values():
        assert all(row.metrics[f"fluency_{name}"] for name in ("forget", "retain"))
        assert row.metrics["mia_grad_norm"] is not None
    start = rows["fine-tuned"].metrics["fluency_retain"]
    assert start is not None
    assert start > (rows["run"].metrics["fluency_forget"] or 0), "the run says other things"
    assert record.evaluations[1].sets["forget"].start_loss is not None
    earlier = run_single(spec, plain, place / "runs" / "small", lambda _: None)
    assert "fluency_forget" not in earlier.epochs[0].metrics
    old = {row.kind: row for row in table_of(read_records(place / "runs" / "small"), chosen).rows}
    assert old["run"].metrics.get("fluency_forget") is None, "not known"
    stored = rows["run"].metrics
    assert {n: stored[n] for n in earlier.epochs[0].metrics} == {
        n: old["run"].metrics[n] for n in earlier.epochs[0].metrics
    }
