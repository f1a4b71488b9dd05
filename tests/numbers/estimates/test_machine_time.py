"""The time of a plan on this machine follows its work and the measured rate."""

from pathlib import Path

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.results import time_to_go
from unlearnbench.results.time_to_go import machine_seconds, measured_flops
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prepared_models import planned_models

CONFIG = """\
name: x
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u]
learning_rates: [1.0e-5, 2.0e-5]
ray: {concurrent: 1}
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

    monkeypatch.setattr(time_to_go, "measured_flops", flops)
    fixed = machine_seconds(plan, data, [], [])
    one, two = (machine_seconds(plan, data, plan.runs[:n], []) for n in (1, 2))
    assert fixed < one < two
    models = list(planned_models(plan, data))
    assert [one.target for one in models] == ["base", "full", "retain90"]
    assert not any(one.done for one in models)
    first = [(m.model, m.rows * m.epochs, m.target == "base") for m in models]
    prepared = machine_seconds(plan, data, plan.runs, first)
    assert prepared > two
    rate = 2e9
    # Half of what is not fixed: the start, and some seconds a run or model.
    constant = fixed + 3.5 * (len(plan.runs) + len(models))
    again = machine_seconds(plan, data, plan.runs, first)
    assert again - constant == pytest.approx((prepared - constant) / 2)

    # Two points of an attack on the forget rows, of each run and of the two reference models.
    Path("y.yaml").write_text(f"{CONFIG}attacks: {{relearning: {{rows: forget, steps: [1, 2]}}}}\n")
    attacked, data = plan_sweep(load_config("y.yaml"))
    assert len(attacked.runs[0].attacks) == 1
    more = machine_seconds(attacked, data, attacked.runs, first) - again
    assert 0 < more < again - constant


def test_the_rate_is_measured() -> None:
    assert 1e7 < measured_flops(16, 32) < 1e13
