"""What may be claimed of each panel, and where it is in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from unlearnbench.claims import Claims, claims
from unlearnbench.evaluation.profiles import TOFU
from unlearnbench.evaluation.result import Evaluation, SetEvaluation
from unlearnbench.power import ks_power
from unlearnbench.records import EpochResult, Record
from unlearnbench.table import table

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
    """Of the forget set, with these truth ratios."""
    n = len(ratios)
    ones, words = np.ones(n, dtype=np.int64), tuple(f"question {i}" for i in range(n))
    loss = -np.log(np.array(ratios))
    rows = SetEvaluation(
        *(words, words, words, loss, ones, loss, ones),
        *(np.zeros((n, 2)), np.ones((n, 2), dtype=np.int64), np.ones(n), np.ones(n)),
    )
    return Evaluation(profile, {"forget": rows})


START = record("fine-tuned", "fine-tuned", [(0.9, -10.0)])


def claimed(by_method: Mapping[str, Sequence[Sequence[Point]]], *more: Record) -> Claims:
    """Of runs through these points, by method and seed."""
    runs = [
        record("run", method, points, seed)
        for method, seeds in by_method.items()
        for seed, points in enumerate(seeds)
    ]
    records = (START, *runs, *more)
    return claims(table(records), records)


def test_order_hypervolume_and_intervals() -> None:
    found = claimed(
        {
            "slow": [[(0.9, -9.0), (0.8, -8.0)]],
            "good": [[(0.8, -4.0)], [(0.8, -2.0)], [(0.8, -3.0)]],
            "broken": [[(0.3, -1.0)]],
        }
    )
    (panel,) = found.panels
    assert (panel.model, panel.forget_fraction, panel.corner) == ("tiny", 0.1, (0.0, -10.0))
    assert [(one.method, one.seeds) for one in panel.standings] == [
        ("good", 3),
        ("slow", 1),
        ("broken", 0),
    ]
    # good: 0.8 · 7; slow: 0.9 · 1 + 0.8 · 1; broken: 0.3 · 9, though it is nobody's best.
    areas = [one.hypervolume for one in panel.standings]
    assert areas == pytest.approx([5.6, 1.7, 2.7])
    good, slow, _ = panel.standings
    assert good.quality is not None
    assert (good.quality.mean, good.quality.low, good.quality.high) == (-3.0, -4.0, -2.0)
    assert good.utility is not None
    assert good.utility.spread == pytest.approx(0)
    assert (slow.quality, slow.utility) == (None, None)
    assert [one.method for one in found.ranks.ranks] == ["good", "slow", "broken"]
    assert [one.told for one in panel.doubts] == [
        "good before slow is in doubt: it rests on 1 and 3 seeds."
    ]
    assert panel.warnings == (
        "This order rests on one seed for slow: other seeds may change it.",
        "Last, for want of a setting that keeps its utility: broken.",
    )


def test_three_seeds_and_intervals_apart_leave_no_doubt() -> None:
    (panel,) = claimed(
        {
            "a": [[(0.8, -1.0)], [(0.8, -1.2)], [(0.8, -1.1)]],
            "b": [[(0.8, -2.0)], [(0.8, -2.2)], [(0.8, -2.1)]],
        }
    ).panels
    assert (panel.doubts, panel.warnings) == ((), ())


def test_overlapping_intervals_are_told() -> None:
    (panel,) = claimed(
        {
            "a": [[(0.8, -1.0)], [(0.8, -2.5)], [(0.8, -1.5)]],
            "b": [[(0.8, -2.0)], [(0.8, -2.9)], [(0.8, -2.1)]],
            "c": [[(0.8, -8.0)], [(0.8, -8.2)], [(0.8, -8.1)]],
        }
    ).panels
    (doubt,) = panel.doubts
    assert (doubt.higher.method, doubt.lower.method, doubt.close) == ("a", "b", True)
    assert doubt.told == (
        "a before b is in doubt: the difference is inside their intervals over seeds."
    )
    assert panel.warnings == ("The difference is inside the intervals over seeds: a and b.",)


def test_two_seeds_are_fewer_than_three() -> None:
    three = [[(0.8, -8.0)], [(0.8, -8.2)], [(0.8, -8.1)]]
    (panel,) = claimed({"a": [[(0.8, -1.0)], [(0.8, -1.1)]], "b": three}).panels
    (doubt,) = panel.doubts
    assert (doubt.few_seeds, doubt.close) == (True, False)
    assert doubt.told == "a before b is in doubt: it rests on 2 and 3 seeds."
    assert panel.warnings == (
        "This order rests on fewer than three seeds for a (2): other seeds may change it.",
    )


def test_equal_methods_of_one_seed() -> None:
    (panel,) = claimed({"a": [[(0.8, -1.0)]], "b": [[(0.85, -1.0)]]}).panels
    assert [one.method for one in panel.standings] == ["b", "a"], "the higher utility first"
    (doubt,) = panel.doubts
    assert doubt.told == "b before a is in doubt: they are equal, and it rests on 1 seed."
    assert panel.warnings == (
        "This order rests on one seed: other seeds may change it.",
        "Equal, and in no order: b and a.",
    )


def test_one_method_alone_rests_on_its_seeds_too() -> None:
    (panel,) = claimed({"a": [[(0.8, -1.0)]]}).panels
    assert panel.warnings == ("These numbers rest on one seed: other seeds may change them.",)


def test_without_a_start_there_is_neither_corner_nor_order() -> None:
    run = record("run", "a", [(0.8, -1.0)])
    (panel,) = claims(table([run]), [run]).panels
    assert panel.corner is None
    assert panel.standings[0].hypervolume is None
    assert panel.warnings == ("Last, for want of a setting that keeps its utility: a.",)


def test_what_could_be_seen_comes_from_the_retain_models_ratios() -> None:
    ratios = np.exp(np.random.default_rng(1).normal(size=30))
    known = record("retain", "retain", [(0.9, 0.0)], evaluations={0: evaluation(ratios.tolist())})
    (panel,) = claimed({"a": [[(0.8, -1.0)]]}, known).panels
    assert panel.sensitivity is not None
    assert panel.sensitivity.n == 30
    wanted = ks_power(ratios)
    assert panel.sensitivity.shift == pytest.approx(wanted.shift)


def test_without_these_ratios_from_their_number() -> None:
    strange = evaluation([1.0, 2.0], profile="tofu@1a2b3c4d")
    other = record("retain", "retain", [(0.9, 0.0)], evaluations={0: strange})
    for more in ((), (other,)):
        (panel,) = claimed({"a": [[(0.8, -1.0)]]}, *more).panels
        assert panel.sensitivity == ks_power(80)
