"""Order of the methods on each panel, and where it is in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.order_confidence import OrderConfidence, assess_order
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import table
from unlearnbench.stats.ks_test import ks_power

Point = tuple[float | None, float | None]


def record(kind: Any, method: str, points: Sequence[Point], seed: int = 0, **more: Any) -> Record:
    """A record through these (Model Utility, log10 Forget Quality) points."""
    first = 1 if kind == "run" else 0
    fields: dict[str, Any] = {
        "id": f"{method}-{seed}",
        "learning_rate": 1e-5 if kind == "run" else None,
        "epochs": tuple(
            EpochResult(k, {"model_utility": u, "log10_forget_quality": q, "ks_n": 80.0}, 1.0, 1.0)
            for k, (u, q) in enumerate(points, start=first)
        ),
    }
    fixed: dict[str, Any] = {
        "kind": kind,
        "model": "tiny",
        "forget_fraction": 0.1,
        "method": method,
        "seed": seed,
        "spec": {},
        "status": "finished",
        "profile": TOFU.id,
    }
    return Record(**fields, **fixed, **more)


def evaluation(ratios: Sequence[float], profile: str = TOFU.id) -> Evaluation:
    """An evaluation of the forget set with these truth ratios."""
    n = len(ratios)
    ones, words = np.ones(n, dtype=np.int64), tuple(f"question {i}" for i in range(n))
    loss = -np.log(np.array(ratios))
    rows = SetEvaluation(
        *(words, words, words, loss, ones, loss, ones),
        *(np.zeros((n, 2)), np.ones((n, 2), dtype=np.int64), np.ones(n), np.ones(n)),
    )
    return Evaluation(profile, {"forget": rows})


START = record("fine-tuned", "fine-tuned", [(0.9, -10.0)])


def claimed(by_method: Mapping[str, Sequence[Sequence[Point]]], *more: Record) -> OrderConfidence:
    """The order of methods whose runs pass through these points, by method and seed."""
    runs = [
        record("run", method, points, seed)
        for method, seeds in by_method.items()
        for seed, points in enumerate(seeds)
    ]
    records = (START, *runs, *more)
    return assess_order(table(records), records)


def test_order_hypervolume_and_intervals() -> None:
    found = claimed(
        {
            "slow": [[(0.9, -9.0), (0.8, -8.0)]],
            "good": [[(0.8, -4.0)], [(0.8, -2.0)], [(0.8, -3.0)]],
            "broken": [[(0.3, -1.0)]],
        }
    )
    (panel,) = found.panels
    assert (panel.model, panel.forget_fraction) == ("tiny", 0.1)
    assert [(one.method, one.seeds) for one in panel.methods] == [
        ("good", 3),
        ("slow", 1),
        ("broken", 0),
    ]
    # good: 0.8 · 7; slow: 0.9 · 1 + 0.8 · 1; broken: 0.3 · 9, though it is nobody's best.
    areas = [one.hypervolume for one in panel.methods]
    assert areas == pytest.approx([5.6, 1.7, 2.7])
    good, slow, _ = panel.methods
    assert good.interval is not None
    # s = 1; Student's t of 2 degrees is 4.303: 4.303 / √3 = 2.484.
    ends = good.interval.mean, good.interval.low, good.interval.high
    assert ends == pytest.approx((-3.0, -5.484, -0.516), abs=1e-3)
    assert slow.interval is None
    assert [one.method for one in found.ranks.ranks] == ["good", "slow", "broken"]
    assert panel.warnings == (
        "This order rests on one seed for slow: other seeds may change it.",
        "Last because no setting keeps its utility: broken.",
    )


def test_three_seeds_and_intervals_apart_leave_no_doubt() -> None:
    (panel,) = claimed(
        {
            "a": [[(0.8, -1.0)], [(0.8, -1.2)], [(0.8, -1.1)]],
            "b": [[(0.8, -2.0)], [(0.8, -2.2)], [(0.8, -2.1)]],
        }
    ).panels
    assert panel.warnings == ()


def test_overlapping_intervals_are_reported() -> None:
    (panel,) = claimed(
        {
            "a": [[(0.8, -1.0)], [(0.8, -2.5)], [(0.8, -1.5)]],
            "b": [[(0.8, -2.0)], [(0.8, -2.9)], [(0.8, -2.1)]],
            "c": [[(0.8, -8.0)], [(0.8, -8.2)], [(0.8, -8.1)]],
        }
    ).panels
    assert panel.warnings == ("Intervals over seeds overlap: a and b.",)


def test_two_seeds_are_fewer_than_three() -> None:
    three = [[(0.8, -8.0)], [(0.8, -8.2)], [(0.8, -8.1)]]
    (panel,) = claimed({"a": [[(0.8, -1.0)], [(0.8, -1.1)]], "b": three}).panels
    assert panel.warnings == (
        "This order rests on fewer than three seeds for a (2): other seeds may change it.",
    )


def test_equal_methods_of_one_seed() -> None:
    (panel,) = claimed({"a": [[(0.8, -1.0)]], "b": [[(0.85, -1.0)]]}).panels
    assert [one.method for one in panel.methods] == ["b", "a"], "the higher utility first"
    assert panel.warnings == (
        "This order rests on one seed: other seeds may change it.",
        "Equal, so in no order: b and a.",
    )


def test_one_method_alone_rests_on_its_seeds_too() -> None:
    (panel,) = claimed({"a": [[(0.8, -1.0)]]}).panels
    assert panel.warnings == ("These numbers rest on one seed: other seeds may change them.",)


def test_without_a_start_there_is_neither_hypervolume_nor_order() -> None:
    run = record("run", "a", [(0.8, -1.0)])
    (panel,) = assess_order(table([run]), [run]).panels
    assert panel.methods[0].hypervolume is None
    assert panel.warnings == ("Last because no setting keeps its utility: a.",)


def test_what_could_be_seen_comes_from_the_retain_models_ratios() -> None:
    ratios = np.exp(np.random.default_rng(1).normal(size=30))
    known = record("retain", "retain", [(0.9, 0.0)], evaluations={0: evaluation(ratios.tolist())})
    (panel,) = claimed({"a": [[(0.8, -1.0)]]}, known).panels
    assert panel.sensitivity is not None
    assert panel.sensitivity.n == 30
    expected = ks_power(ratios)
    assert panel.sensitivity.shift == pytest.approx(expected.shift)


def test_without_these_ratios_from_their_number() -> None:
    strange = evaluation([1.0, 2.0], profile="tofu@1a2b3c4d")
    other = record("retain", "retain", [(0.9, 0.0)], evaluations={0: strange})
    for more in ((), (other,)):
        (panel,) = claimed({"a": [[(0.8, -1.0)]]}, *more).panels
        assert panel.sensitivity == ks_power(80)
