"""The time of a plan on this machine follows its work and the measured rate."""

from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan
from unlearnbench.results import run_estimate
from unlearnbench.results.effort import row_lengths
from unlearnbench.results.run_estimate import (
    Estimate,
    ModelToPrepare,
    Rates,
    estimate_plan,
    measured_flops,
    sweep_seconds,
)
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prepared_models import planned_models

CONFIG = """\
name: x
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u, eco]
learning_rates: [1.0e-5, 2.0e-5]
"""


def test_seconds_grow_with_work_and_shrink_with_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(CONFIG)
    plan, data = plan_sweep(load_config("x.yaml"))
    rate = 1e9

    def flops(_hidden: int, _inner: int) -> float:
        return rate

    def seconds(plan: Plan, n: int, *prepared: ModelToPrepare) -> float:
        estimates, unknown = estimate_plan(replace(plan, runs=plan.runs[:n]), data, None, None)
        assert not unknown
        return sweep_seconds(estimates, 1, prepared)

    monkeypatch.setattr(run_estimate, "measured_flops", flops)
    none, one, two, three = (seconds(plan, n) for n in range(4))
    assert none == 20
    assert none < one < two < three
    models = list(planned_models(plan, data))
    assert [one.target for one in models] == ["base", "full", "retain90"]
    assert not any(one.done for one in models)
    first = [ModelToPrepare(m.model, m.rows * m.epochs, m.target == "base") for m in models]
    prepared = seconds(plan, 3, *first)
    assert prepared > three
    rate = 2e9
    # Half of what is not fixed: the start, some seconds a run or model, and few checkpoints.
    constant = 20 + 3.5 * (3 + len(models))
    again = seconds(plan, 3, *first)
    assert again - constant == pytest.approx((prepared - constant) / 2, rel=0.05)

    # On a device that waits for launches a model takes as long for each step and layer.
    waits = Rates(1e15, 1, inf, launched=0.5, started=0)
    estimates, _ = estimate_plan(plan, data, waits, None)
    awaited = ModelToPrepare("tiny", 320, is_awaited=True)
    alone = sweep_seconds(estimates, 1, [awaited]) - sweep_seconds(estimates, 1, [])
    steps, layers = 320 / plan.runs[0].model.preparation.batch_size, 6
    assert alone == pytest.approx(steps * layers * 0.5, rel=1e-6)

    # Two points of an attack on the forget rows, of each run and of the two reference models.
    Path("y.yaml").write_text(f"{CONFIG}attacks: {{relearning: {{rows: forget, steps: [1, 2]}}}}\n")
    attacked, data = plan_sweep(load_config("y.yaml"))
    assert len(attacked.runs[0].attacks) == 1
    more = seconds(attacked, 3, *first) - again
    assert 0 < more < again - constant


def test_the_training_of_attacks_is_in_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Only floating-point operations take time.
    rates = Rates(1e9, 1, inf, 0, 0, inf, inf, 0, 0, inf, started=0)

    def estimated(attack: str) -> tuple[Estimate, float]:
        Path("x.yaml").write_text(f"{CONFIG}attacks: {{{attack}}}\n")
        plan, data = plan_sweep(load_config("x.yaml"))
        estimates, unknown = estimate_plan(plan, data, rates, None)
        assert not unknown
        assert len(plan.runs) == 3
        return estimates[0], sweep_seconds(estimates, 1, [])

    short, seconds_of_short = estimated("relearning: {rows: forget, steps: [10], batch_size: 8}")
    long, seconds_of_long = estimated("relearning: {rows: forget, steps: [90], batch_size: 8}")
    # One author in ten is to be forgotten, so a step has its two rows. A token of a row costs
    # two operations for each weight forward and four back.
    _, data = plan_sweep(load_config("x.yaml"))
    length = fmean(tokens for tokens, _ in row_lengths(short.run, data))
    each = 6 * short.shape.matrices * 2 * length
    assert short.hours.attacks * 3600 == pytest.approx(10 * each / 1e9)
    assert long.hours.attacks * 3600 == pytest.approx(90 * each / 1e9)
    # Three runs are attacked, a retain model and a start model.
    assert seconds_of_long - seconds_of_short == pytest.approx(5 * 80 * each / 1e9)


def test_the_rate_is_measured() -> None:
    assert 1e7 < measured_flops(16, 32) < 1e13
