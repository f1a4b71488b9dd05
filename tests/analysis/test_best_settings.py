"""Averages over seeds, and the rule behind «best»."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.analysis.best_settings import average_seeds, best_per_method, start_utility
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import table

Points = tuple[tuple[float | None, float | None], ...]


def record(
    name: str,
    points: Points = ((0.8, -5.0),),
    kind: Any = "run",
    rate: float = 1e-5,
    seed: int = 0,
    **hyperparameters: float,
) -> Record:
    """A record with these (Model Utility, log10 Forget Quality) points, epoch by epoch."""
    return Record(
        id=name,
        kind=kind,
        model="tiny",
        forget_fraction=0.1,
        method="npo" if kind == "run" else kind,
        learning_rate=rate if kind == "run" else None,
        seed=seed,
        spec={"method": {"name": "npo", "hyperparameters": hyperparameters}},
        status="finished",
        profile="tofu@1",
        epochs=tuple(
            EpochResult(epoch, {"model_utility": u, "log10_forget_quality": q}, 1.0, 1.0)
            for epoch, (u, q) in enumerate(points, start=int(kind == "run"))
        ),
    )


START = record("start", ((0.9, -16.0),), kind="fine-tuned")
GOAL = record("goal", ((0.88, 0.0),), kind="retain")


def test_seeds_are_averaged_with_their_range() -> None:
    rows = table([record(f"s{s}", ((u, -4.0),), seed=s) for s, u in enumerate((0.5, 0.7, 0.9))])
    (setting,) = average_seeds(rows)
    assert setting.metrics["model_utility"] == pytest.approx(0.7)
    assert setting.spread("model_utility") == (0.5, 0.9)
    assert len(setting.rows) == 3


def test_a_seed_without_a_number_leaves_its_setting_without_one() -> None:
    rows = table([record("a", ((0.8, -1.0),)), record("b", ((None, None),), seed=1)])
    (setting,) = average_seeds(rows)
    assert setting.metrics["model_utility"] is None
    assert best_per_method([*table([START]), *rows])[0].setting is None


def test_best_has_the_highest_quality_with_enough_utility() -> None:
    # 80 % of 0.9 is 0.72: epoch 3 has forgotten most but has lost too much.
    points: Points = ((0.85, -12.0), (0.73, -6.0), (0.71, -1.0))
    rows = table([START, GOAL, record("a", points), record("b", ((0.88, -9.0),), rate=1e-4)])
    (best,) = best_per_method(rows)
    assert best.setting is not None
    assert (best.setting.learning_rate, best.setting.epoch) == (1e-5, 2)


def test_exactly_eighty_percent_is_enough_and_a_lower_share_lets_more_through() -> None:
    rows = table([record("s", ((1.0, -9.0),), kind="fine-tuned"), record("a", ((0.8, -5.0),))])
    assert best_per_method(rows)[0].setting is not None
    assert best_per_method(rows, utility_share=0.81)[0].setting is None


def test_without_a_start_nothing_is_best() -> None:
    (best,) = best_per_method(table([record("a")]))
    assert best.setting is None
    assert best.method == "npo"


def test_epoch_0_replaces_a_missing_start_model_and_is_never_best() -> None:
    run = record("a", ((0.9, -1.0), (0.85, -5.0)))
    run = replace(run, epochs=tuple(replace(e, epoch=e.epoch - 1) for e in run.epochs))
    rows = table([run])
    assert start_utility(rows, "tiny", 0.1) == 0.9
    (best,) = best_per_method(rows)
    assert best.setting is not None
    assert best.setting.epoch == 1


def test_hyper_parameter_settings_of_a_method_compete() -> None:
    records = [START, *(record(f"b{b}", ((0.8, -b),), beta=b) for b in (2.0, 5.0))]
    (best,) = best_per_method(table(records))
    assert best.method == "npo (beta=2)"
