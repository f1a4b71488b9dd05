"""Requests in sequence: each run goes on from the model of the one before, which waits for it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.base.errors import ConfigError, ModelError
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.loading import load_model
from unlearnbench.models.source import Source
from unlearnbench.results.records import read_record, run_record, write_record
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.request_sequence import leave_model
from unlearnbench.runs.run import run_epochs, run_single
from unlearnbench.runs.workspace import workspace

from ..small_run import config_of, runs_of


def sequence_in(folder: Path) -> tuple[SweepConfig, RunSpec, RunSpec]:
    config = config_of(folder, forget_fractions=(0.25, 0.5), epochs=1, requests="in-sequence")
    first, second = runs_of(config)
    return config, first, second


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and what runs are compared with."""
    place = tmp_path_factory.mktemp("models")
    config, *runs = sequence_in(place)
    for task in preparation_tasks(config, runs, place / "runs/small"):
        execute_task(task, config, place / "runs/small")
    return place


@pytest.fixture
def sequence(models: Path, tmp_path: Path) -> tuple[SweepConfig, RunSpec, RunSpec]:
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    return sequence_in(tmp_path)


def carry_out(config: SweepConfig, run: RunSpec) -> Path:
    folder = Path(config.output) / config.name
    run_single(run, config, folder, lambda _: None)
    return folder


def weights(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_run_is_another_after_another() -> None:
    config = config_of(Path(), forget_fractions=(0.25, 0.5), seeds=(0, 1), epochs_as="runs")
    apart, runs = runs_of(config), runs_of(config.model_copy(update={"requests": "in-sequence"}))
    assert [run.id for run in runs[:6]] == [run.id for run in apart[:6]], "first requests"
    assert [run.after for run in runs] == [*[""] * 6, *(run.id for run in runs[:6])]
    assert [(run.seed, run.epochs) for run in runs[:6]] == [(r.seed, r.epochs) for r in runs[6:]]
    assert not {run.id for run in runs[6:]} & {run.id for run in apart}
    changed = config.model_copy(update={"requests": "in-sequence", "learning_rates": (2e-3,)})
    assert runs_of(changed)[6].id != runs[6].id, "what was before it counts"
    assert "after" not in runs[0].to_json()


def test_the_second_request_goes_on_from_the_model_of_the_first(
    sequence: tuple[SweepConfig, RunSpec, RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, first, second = sequence
    left: list[dict[str, Tensor]] = []

    def seen(model: Any, *arguments: Any) -> None:
        left.append(weights(model))
        leave_model(model, *arguments)

    monkeypatch.setattr("unlearnbench.runs.run.leave_model", seen)
    folder = carry_out(config, first)
    stored = folder / "requests" / first.id
    kept = weights(load_model(Source(str(stored)), first.model))
    assert all(torch.equal(kept[name], tensor) for name, tensor in left[0].items())
    space = workspace(config, folder)
    method: Any = method_from_spec(second.method)
    begun = weights(build_trainer(second, space, method).model)
    start = weights(load_model(space.models("tiny").full(), first.model))
    assert all(torch.equal(begun[name], tensor) for name, tensor in left[0].items())
    assert any(not torch.equal(begun[name], tensor) for name, tensor in start.items())
    for _ in run_epochs(second, config, folder):
        assert stored.is_dir(), "until the second request is recorded"
    assert read_record(folder / "records" / second.id).status == "finished"
    assert not [*(folder / "requests").iterdir()]


def test_a_missing_model_is_a_sentence_with_its_reason(
    sequence: tuple[SweepConfig, RunSpec, RunSpec],
) -> None:
    config, first, second = sequence
    with pytest.raises(ModelError, match=f"run {first.id}, which is not done: run it"):
        carry_out(config, second)
    folder = carry_out(config, first)
    shutil.rmtree(folder / "requests")
    with pytest.raises(ModelError, match=f"{first.id} left for it is gone"):
        carry_out(config, second)
    shutil.rmtree(folder / "records" / first.id)
    write_record(run_record(first, status="failed", error="no memory"), folder)
    with pytest.raises(ModelError, match=r"left no model: failed \(no memory\)"):
        carry_out(config, second)


def test_a_killed_request_is_repeated_from_the_model_before_it(
    sequence: tuple[SweepConfig, RunSpec, RunSpec],
) -> None:
    config, first, second = sequence
    folder = carry_out(config, first)
    through = read_record(carry_out(config, second) / "records" / second.id)
    for run in (first, second):
        shutil.rmtree(folder / "records" / run.id)
    carry_out(config, first)
    assert next(run_epochs(second, config, folder), None) is not None, (
        "and killed before its record"
    )
    again = read_record(carry_out(config, second) / "records" / second.id)
    assert [epoch.metrics for epoch in again.epochs] == [epoch.metrics for epoch in through.epochs]
    assert again.spec == through.spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"kind": "random", "trials": 2}}, "in-sequence takes a grid"),
        ({"methods": ["eco"]}, "eco trains nothing that the next request could go on from"),
        ({"resources": {"gpu": 2}}, "in-sequence needs whole weights"),
    ],
)
def test_what_cannot_be_in_sequence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {"name": "x", "data": {"source": "synthetic"}, "forget_fractions": [0.1, 0.2]}
    values |= {"models": [{"name": "tiny", "base": "tiny"}], "methods": ["npo"]}
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(values | {"requests": "in-sequence"} | changes), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(str(file))
