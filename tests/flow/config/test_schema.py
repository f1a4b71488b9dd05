"""Patience ends runs, and the same ones after an interruption."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.config.schema import Patience, SweepConfig
from unlearnbench.evaluation.benchmark_schema import default_schema
from unlearnbench.results.records import read_record
from unlearnbench.runs import workspace
from unlearnbench.runs.run import run_epochs, run_single

from ..small_run import config_of, runs_of, without_times

METRIC = "log10_forget_quality"


def ended(values: Sequence[float | None], **rule: Any) -> str | None:
    patience = Patience.model_validate({"metric": METRIC, "epochs": 2, **rule})
    evaluated = ((k, {patience.metric: v}) for k, v in enumerate(values, start=1))
    return patience.ended(evaluated, default_schema().column(patience.metric).better)


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
def test_counts_evaluated_epochs_without_improvement(
    values: list[float | None], ends: bool
) -> None:
    assert (ended(values) is not None) == ends


def test_improvement_depends_on_min_delta_and_mode() -> None:
    assert ended([-3.0, -2.9, -2.8]) is None
    assert ended([-3.0, -2.9, -2.8], min_delta=0.5) == (
        "epoch 3: log10_forget_quality has not improved since epoch 1 (-3) by more than 0.5 "
        "(evaluation.patience)"
    )
    falling = [0.5, 0.4, 0.3]
    assert ended(falling, metric="extraction_strength_forget") is None, "as its metric declares"
    assert ended(falling, metric="truth_ratio_forget") is not None, "best where both are as likely"
    assert ended(falling, metric="ks_statistic") is None, "it falls while a model forgets"
    assert ended(falling, metric="ks_statistic", mode="max") is not None
    assert ended(falling, metric="model_utility") is not None
    assert ended([0.3, 0.4, 0.5], metric="rouge_forget") == (
        "epoch 3: rouge_forget has not improved since epoch 1 (0.3) (evaluation.patience)"
    )


def patient(place: Path, **rule: Any) -> SweepConfig:
    """A run of four epochs that never improves by so much."""
    config = config_of(place, epochs=4)
    values = {"metric": "model_utility", "epochs": 2, "min_delta": 10.0, **rule}
    evaluation = config.evaluation.model_copy(update={"patience": Patience.model_validate(values)})
    return config.model_copy(update={"evaluation": evaluation})


def test_run_ends_early_with_a_reason_in_its_record(place: Path) -> None:
    config, folder = patient(place), place / "runs" / "small"
    (plain,), (spec,) = runs_of(config_of(place, epochs=4)), runs_of(config)
    assert "patience" not in plain.identity["evaluation"]
    assert spec.id != plain.id
    printed: list[str] = []
    record = run_single(spec, config, folder, printed.append)
    assert (record.status, [e.epoch for e in record.epochs]) == ("finished", [1, 2, 3])
    assert record.ended is not None
    assert record.ended.startswith("epoch 3: model_utility has not improved since epoch 1 (")
    assert printed[-1] == f"ended early: {record.ended}"
    utility = record.epochs[-1].metrics["model_utility"]
    assert printed[-2].startswith(f"epoch 3: Model Utility {utility:.3f}, log10 Forget Quality -")
    assert read_record(folder / "records" / spec.id).ended == record.ended
    assert not (folder / "state" / spec.id).exists()
    through = run_single(plain, config_of(place, epochs=4), folder, lambda _: None)
    assert (len(through.epochs), through.ended) == (4, None)
    # Up to its end a run is the one without the rule.
    assert [e.metrics for e in through.epochs[:3]] == [e.metrics for e in record.epochs]


def test_interrupted_runs_end_at_the_same_epoch(place: Path) -> None:
    config, folder = patient(place), place / "runs" / "small"
    (spec,) = runs_of(config)
    through = without_times(run_single(spec, config, folder, lambda _: None))
    for stop_after in (2, 3):
        shutil.rmtree(folder / "records" / spec.id)
        interrupted = run_epochs(spec, config, folder)
        for _ in range(stop_after):
            next(interrupted)
        del interrupted  # after the third epoch the rule applies, and its record is not written
        workspace.clear_workspaces()
        assert without_times(run_single(spec, config, folder, lambda _: None)) == through
