"""The control: attacks that do not find rows which the start model was trained on are named."""

from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.privacy_control import control_warning, holdout_notice
from unlearnbench.evaluation.summary import summarize
from unlearnbench.results.records import EpochResult, Record

from ..metrics.conftest import observed

DATA = benchmark_named("tofu")


def start_metrics(retain_loss: float) -> dict[str, float | None]:
    """A start model that has seen the forget rows; holdout rows have a loss of about 3."""
    draws = np.random.default_rng(0)

    def rows(loss: float, n: int = 60) -> Any:
        return observed((loss + draws.normal(0, 0.5, (n, 6))).tolist(), perturbed=2)

    sets = {"retain": rows(retain_loss), "forget": rows(0.5), "holdout": rows(3.0)}
    sets |= {name: rows(1.0) for name in ("real_authors", "world_facts")}
    return summarize(Evaluation(TOFU.id, sets), None, TOFU)


def report_of(metrics: dict[str, float | None]) -> tuple[str, ...]:
    start = Record(
        *("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", TOFU.id),
        epochs=(EpochResult(0, metrics, 0.0, 0.0),),
    )
    return Results.of([start], name="x").warnings


def test_a_start_model_that_knows_its_retain_rows_passes() -> None:
    metrics = start_metrics(0.5)
    for attack in ("loss", "zlib", "min_k"):
        assert metrics[f"mia_{attack}_control"] == pytest.approx(1, abs=0.01)
    assert "mia_reference_control" not in metrics
    assert control_warning(metrics, "tiny", 0.1) is None
    assert report_of(metrics) == ()


def test_a_retain_set_that_the_start_model_has_not_seen_fails() -> None:
    metrics = start_metrics(3.0)
    assert metrics["mia_loss"] == pytest.approx(1, abs=0.01)  # that alone looks convincing
    line = control_warning(metrics, "tiny", 0.1)
    assert line is not None
    assert "\n" not in line
    assert line.startswith("tiny, forget 0.1: in the start model, mia_loss (0.")
    assert "mia_zlib (" in line
    assert "mia_min_k (" in line
    assert report_of(metrics) == (line,)


def test_missing_holdout_rows_are_named_with_the_columns_that_need_them() -> None:
    assert holdout_notice([], TOFU, DATA) is None
    assert holdout_notice(["holdout01", "holdout10"], TOFU, DATA) == (
        "the data have no rows of holdout01, holdout10 (TOFU has them on the hub only): mia_*, "
        "private, privleak have no values"
    )
