"""Where two distribution functions are furthest apart, and what a page holds of them."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from unlearnbench.evaluation.metrics import summarize, truth_ratios
from unlearnbench.evaluation.profiles import OPEN_UNLEARNING, TOFU, TOFU_PAPER, Profile
from unlearnbench.table import table

if TYPE_CHECKING:
    from unlearnbench.records import Record

    from .conftest import Fabric

distributions: Any = importlib.import_module("unlearnbench_dashboards.distributions")
held: Any = importlib.import_module("unlearnbench_dashboards.held")


def test_d_worked_by_hand() -> None:
    # Below 10 lie 1 of 4 ratios of the one and 3 of 4 of the other, up to the next ratio, 100.
    gap = distributions.widest(np.array([1.0, 100, 200, 300]), np.array([2.0, 3, 10, 1000]))
    assert (gap.below, gap.below_retain) == (1, 3)
    assert gap.at == pytest.approx(1.5)  # halfway from 10 to 100, in decades
    assert gap.quality.statistic == 0.5


@pytest.mark.parametrize("seed", range(20))
def test_d_is_where_scipy_finds_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.lognormal(0.0, 1.0, 40), np.round(rng.lognormal(0.4, 1.0, 40), 1)
    gap = distributions.widest(one, other)
    found = ks_2samp(one, other, method="exact")
    assert abs(gap.below - gap.below_retain) / 40 == pytest.approx(found.statistic, abs=1e-12)
    at = 10**gap.at
    assert (one <= at).sum() == gap.below
    assert (other <= at).sum() == gap.below_retain
    assert gap.quality.p_value == pytest.approx(found.pvalue)


def test_equal_samples_and_samples_without_a_number() -> None:
    same = np.array([1.0, 2.0])
    assert distributions.widest(same, same).quality.statistic == 0
    assert distributions.widest(same, np.array([1.0, math.nan])) is None


def test_underflow_and_overflow_stand_at_the_last_float() -> None:
    logs = distributions.logarithms(np.array([math.inf, 1.0, 0.0]))
    assert logs.tolist() == pytest.approx([-307.65, 0.0, 308.25], abs=0.01)


def real(fabric: Fabric, profile: Profile) -> list[Record]:
    """Anchors and a run whose metrics are those of their evaluations."""
    records = [
        fabric.anchor("fine-tuned", rows=30),
        fabric.anchor("retain", rows=30),
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
    found = distributions.collect(held.read(records, table(records)), records)
    run = records[2]
    for result in run.epochs:
        _, below, below_retain, n, distance, log10_p = found["gaps"][run.id][str(result.epoch)]
        assert distance == result.metrics["ks_statistic"] == abs(below - below_retain) / n
        assert log10_p == result.metrics["log10_forget_quality"]
        assert n == result.metrics["ks_n"]
        ratios = truth_ratios(run.evaluations[result.epoch].sets["forget"], profile)
        units = np.cumsum(found["there"][run.id][str(result.epoch)])
        drawn = units * found["step"]
        assert drawn == pytest.approx(np.log10(np.sort(ratios)), abs=found["step"] / 2 + 1e-12)


def test_without_a_retain_model_there_is_a_curve_and_no_gap(fabric: Fabric) -> None:
    run = fabric.run()
    found = distributions.collect(held.read([run], table([run])), [run])
    assert list(found["there"]) == [run.id]
    assert found["gaps"] == {}


def test_other_questions_of_the_retain_model_make_no_gap(fabric: Fabric) -> None:
    records = [fabric.anchor("retain", rows=4), fabric.run(rows=3)]
    assert distributions.collect(held.read(records, table(records)), records)["gaps"] == {}


def test_a_profile_that_is_not_known_says_why_nothing_is_drawn(fabric: Fabric) -> None:
    run = fabric.run(profile="tofu@1a2b3c4d")
    found = distributions.collect(held.read([run], table([run])), [run])
    assert "tofu@1a2b3c4d" in found["why_not"]
    assert found["there"] == {}
