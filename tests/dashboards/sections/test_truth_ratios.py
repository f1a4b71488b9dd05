"""Truth ratios as the page embeds them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unlearnbench.api.profile import Profile
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU, TOFU_PAPER
from unlearnbench.evaluation.summary import summarize, truth_ratios
from unlearnbench.results.table import table

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

data: Any = importlib.import_module("unlearnbench_dashboards.sections.truth_ratios.data")
budget: Any = importlib.import_module("unlearnbench_dashboards.page_budget")


def collect(records: list[Record]) -> Any:
    return data.ratio_data(budget.embedded_evaluations(records, table(records)), records)


def real(fabric: Fabric, profile: Profile) -> list[Record]:
    """Start model, retain model and a run with the metrics of their evaluations."""
    records = [
        fabric.reference("fine-tuned", rows=30),
        fabric.reference("retain", rows=30),
        fabric.run(rows=30),
    ]
    by = [
        {e: replace(found, profile=profile.id) for e, found in r.evaluations.items()}
        for r in records
    ]
    goal = by[1][0]
    return [
        replace(
            r,
            profile=profile.id,
            evaluations=found,
            epochs=tuple(
                replace(e, metrics=summarize(found[e.epoch], goal, profile)) for e in r.epochs
            ),
        )
        for r, found in zip(records, by, strict=True)
    ]


@pytest.mark.parametrize("profile", [TOFU, TOFU_PAPER, OPEN_UNLEARNING], ids=lambda p: p.name)
def test_the_pages_numbers_are_the_records(fabric: Fabric, profile: Profile) -> None:
    records = real(fabric, profile)
    found = collect(records)
    run = records[2]
    for result in run.epochs:
        _, below, below_retain, n, distance, log10_p = found["gaps"][run.id][str(result.epoch)]
        assert distance == result.metrics["ks_statistic"] == abs(below - below_retain) / n
        assert log10_p == result.metrics["log10_forget_quality"]
        assert n == result.metrics["ks_n"]
        ratios = truth_ratios(run.evaluations[result.epoch].sets["forget"], profile)
        units = np.cumsum(found["units"][run.id][str(result.epoch)])
        drawn = units * found["step"]
        assert drawn == pytest.approx(np.log10(np.sort(ratios)), abs=found["step"] / 2 + 1e-12)


def test_without_a_retain_model_there_is_a_curve_and_no_gap(fabric: Fabric) -> None:
    run = fabric.run()
    found = collect([run])
    assert list(found["units"]) == [run.id]
    assert found["gaps"] == {}


def test_other_questions_of_the_retain_model_make_no_gap(fabric: Fabric) -> None:
    records = [fabric.reference("retain", rows=4), fabric.run(rows=3)]
    assert collect(records)["gaps"] == {}


def test_an_unknown_profile_is_the_reason_for_no_ratios(fabric: Fabric) -> None:
    run = fabric.run(profile="tofu@1a2b3c4d")
    found = collect([run])
    assert "tofu@1a2b3c4d" in found["reason"]
    assert found["units"] == {}
