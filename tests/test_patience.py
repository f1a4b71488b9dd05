"""Patience: when it ends a run, and that it ends the same one however it is carried out."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import workspace
from unlearnbench.cli import main
from unlearnbench.patience import Patience
from unlearnbench.records import read_record
from unlearnbench.running import run_epochs, run_single
from unlearnbench.settings import SweepConfig

from .test_processes import launch
from .test_running import config_of, place, prepared_folder, runs_of, without_times

__all__ = ["place", "prepared_folder"]

METRIC = "log10_forget_quality"


def ended(values: Sequence[float | None], **rule: Any) -> str | None:
    patience = Patience.model_validate({"metric": METRIC, "epochs": 2, **rule})
    return patience.ended((k, {patience.metric: v}) for k, v in enumerate(values, start=1))


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([], False),
        ([-3.0, -3.0], False),
        ([-3.0, -3.0, -4.0], True),
        ([-3.0, -4.0, -2.0, -2.5], False),
        ([-3.0, None, math.nan], True),
        ([None, None], True),
        ([-math.inf, -5.0, -6.0], False),
        ([-math.inf, -math.inf], True),
    ],
)
def test_it_counts_evaluated_epochs_without_improvement(
    values: list[float | None], ends: bool
) -> None:
    assert (ended(values) is not None) == ends


def test_what_counts_as_an_improvement() -> None:
    assert ended([-3.0, -2.9, -2.8]) is None
    assert ended([-3.0, -2.9, -2.8], min_delta=0.5) == (
        "epoch 3: log10_forget_quality has not improved since epoch 1 (-3) by more than 0.5 "
        "(evaluation.patience)"
    )
    falling = [0.5, 0.4, 0.3]
    assert ended(falling, metric="ks_statistic") is None, "it falls while a model forgets"
    assert ended(falling, metric="ks_statistic", mode="max") is not None
    assert ended(falling, metric="model_utility") is not None
    assert ended([0.3, 0.4, 0.5], metric="rouge_forget") == (
        "epoch 3: rouge_forget has not improved since epoch 1 (0.3) (evaluation.patience)"
    )


def patient(place: Path, **rule: Any) -> SweepConfig:
    """A run of five epochs that never improves by so much."""
    config = config_of(place, epochs=5)
    values = {"metric": "model_utility", "epochs": 2, "min_delta": 10.0, **rule}
    evaluation = config.evaluation.model_copy(update={"patience": Patience.model_validate(values)})
    return config.model_copy(update={"evaluation": evaluation})


def test_a_run_ends_says_why_and_is_not_run_again(place: Path) -> None:
    config, folder = patient(place), place / "runs" / "small"
    (plain,), (spec,) = runs_of(config_of(place, epochs=5)), runs_of(config)
    assert "patience" not in plain.identity["evaluation"]
    assert spec.id != plain.id
    told: list[str] = []
    record = run_single(spec, config, folder, told.append)
    assert (record.status, [e.epoch for e in record.epochs]) == ("finished", [1, 2, 3])
    assert record.ended is not None
    assert record.ended.startswith("epoch 3: model_utility has not improved since epoch 1 (")
    assert told[-1] == f"ended early: {record.ended}"
    assert read_record(folder / "records" / spec.id).ended == record.ended
    assert not (folder / "state" / spec.id).exists()
    through = run_single(plain, config_of(place, epochs=5), folder, lambda _: None)
    assert (len(through.epochs), through.ended) == (5, None)
    # Up to its end a run is the one without the rule.
    assert [e.metrics for e in through.epochs[:3]] == [e.metrics for e in record.epochs]
    # A record of before there was patience says nothing of it.
    path = folder / "records" / plain.id / "record.json"
    document = json.loads(path.read_text())
    del document["ended"], document["sha256"]
    path.write_text(json.dumps(document))
    assert read_record(path.parent).ended is None


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_an_interrupted_run_ends_at_the_same_epoch(place: Path, stop_after: int) -> None:
    config, folder = patient(place), place / "runs" / "small"
    (spec,) = runs_of(config)
    through = run_single(spec, config, folder, lambda _: None)
    shutil.rmtree(folder / "records" / spec.id)
    interrupted = run_epochs(spec, config, folder)
    for _ in range(stop_after):
        next(interrupted)
    del interrupted  # after the third epoch the rule has been met, and nothing is written of it
    workspace.workspace.cache_clear()
    assert without_times(run_single(spec, config, folder, lambda _: None)) == without_times(through)


def test_the_last_epoch_is_no_early_end(place: Path) -> None:
    config = patient(place, epochs=4)
    (spec,) = runs_of(config)
    record = run_single(spec, config, place / "runs" / "small", lambda _: None)
    assert (len(record.epochs), record.ended) == (5, None)


PROGRAM = """
import json, sys
from pathlib import Path
import torch
from unlearnbench import group
from unlearnbench.data.loading import fingerprint, load_benchmark
from unlearnbench.plan import make_plan
from unlearnbench.running import run_single
from unlearnbench.settings import SweepConfig

torch.set_num_threads(1)
group.join()
config = SweepConfig.model_validate_json(Path(sys.argv[1]).read_text())
data = load_benchmark(config.data, config.forget_fractions)
(run,) = make_plan(config, {f: fingerprint(data, f) for f in data.splits}).runs
record = run_single(run, config, Path(sys.argv[2]), lambda _: None)
Path(sys.argv[3]).write_text(json.dumps([len(record.epochs), record.ended, group.world()]))
"""


@pytest.mark.slow
def test_every_process_of_a_run_ends_with_it(place: Path) -> None:
    config, folder = patient(place), place / "runs" / "small"
    path = place / "config.json"
    path.write_text(config.model_dump_json())
    files = launch(PROGRAM, [str(path), str(folder)], place, 2)
    found = [json.loads(file.read_text()) for file in files]
    assert found[0] == found[1]
    assert (found[0][0], found[0][2]) == (3, 2)
    assert found[0][1].startswith("epoch 3: ")


def test_a_method_that_trains_nothing_is_the_same_run(place: Path) -> None:
    (spec,) = runs_of(patient(place))
    without = spec.model_copy(update={"learning_rate": None})
    assert "patience" not in without.identity["evaluation"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("{metric: model_utilty, epochs: 1}", "unknown metric 'model_utilty'; did you mean"),
        ("{metric: model_utility, epochs: 5}", "5 epochs of patience end no run of 5"),
        ("{metric: model_utility, epochs: 0}", "must be at least 1"),
        ("{metric: model_utility}", "evaluation.patience.epochs"),
        ("{metric: model_utility, epochs: 1, patience: 2}", "unknown key"),
    ],
)
def test_plan_refuses_a_rule_that_cannot_be(
    setting: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "quickstart", "--set", f"evaluation.patience={setting}"]) == 2
    assert expected in capsys.readouterr().err


def test_runs_that_are_evaluated_once_have_no_patience(capsys: pytest.CaptureFixture[str]) -> None:
    rule = "evaluation.patience={metric: model_utility, epochs: 1}"
    assert main(["plan", "quickstart", "--set", rule, "--set", "epochs_as=runs"]) == 2
    assert "there is nothing to end early; take epochs_as: checkpoints" in capsys.readouterr().err
