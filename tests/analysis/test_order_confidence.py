"""Order of the methods on each panel, and where it is in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.best_settings import Best, Setting
from unlearnbench.analysis.order_confidence import (
    OrderConfidence,
    assess_order,
    mid_ranks,
    rank_methods,
    rivals,
)
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.results.epoch_metrics import Numbers
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import TableRow, table
from unlearnbench.stats.ks_test import ks_power

from .conftest import (
    FAR,
    NEAR,
    REFERENCES,
    TINY,
    compared,
    off,
    run,
)

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
        "Not better beyond chance over seeds, so of one place: good and slow.",
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


def test_methods_that_do_not_differ_beyond_chance_share_a_place() -> None:
    (panel,) = claimed(
        {
            "a": [[(0.8, -1.0)], [(0.8, -2.5)], [(0.8, -1.5)]],
            "b": [[(0.8, -2.0)], [(0.8, -2.9)], [(0.8, -2.1)]],
            "c": [[(0.8, -8.0)], [(0.8, -8.2)], [(0.8, -8.1)]],
        }
    ).panels
    assert panel.warnings == ("Not better beyond chance over seeds, so of one place: a and b.",)
    assert [one.place for one in panel.methods] == [1, 1, 3]


def test_two_seeds_are_fewer_than_three() -> None:
    three = [[(0.8, -8.0)], [(0.8, -8.2)], [(0.8, -8.1)]]
    (panel,) = claimed({"a": [[(0.8, -1.0)], [(0.8, -1.1)]], "b": three}).panels
    assert panel.warnings == (
        "This order rests on fewer than three seeds for a (2): other seeds may change it.",
        "Not better beyond chance over seeds, so of one place: a and b.",
    )


def test_equal_methods_of_one_seed() -> None:
    (panel,) = claimed({"a": [[(0.8, -1.0)]], "b": [[(0.85, -1.0)]]}).panels
    assert [one.method for one in panel.methods] == ["b", "a"], "the higher utility first"
    assert panel.warnings == ("This order rests on one seed: other seeds may change it.",)
    assert [one.place for one in panel.methods] == [1, 1]


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


class TestRivals:
    """Tests of the leading method against the others."""

    TWIN = tuple(run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3))
    AWAY = run("away", [(0.95, off(2.9))])

    def test_rivals_are_separated_by_significance(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR, *self.TWIN)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert {found.leader, *found.same} == {"near", "twin"}
        assert (found.apart, found.untested) == (("far",), {})
        assert (found.questions, found.resolution) == (40, 0.325)
        assert set(found.near_retain) == {"near", "twin"}
        first, second = found.sentences
        assert first.startswith(
            f"{found.leader} leads, but does not forget significantly more than 1 method: "
        )
        assert second.startswith("All 2 of them lie too close to the retain model for 40 questions")

    def test_agrees_with_compare(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR, *self.TWIN)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        for other, better in [(found.same[0], None), ("far", found.leader)]:
            (panel,) = compared(found.leader, other, records).panels
            assert (panel.better and panel.better.name) == better

    def test_without_a_rival(self) -> None:
        records = (*REFERENCES, *NEAR, *FAR)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert found.sentences[0].startswith(
            "near forgets more than 1 method tested (paired test over"
        )

    def test_no_test_is_named_with_its_reason(self) -> None:
        records = (*REFERENCES, *NEAR, self.AWAY)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert (found.same, found.apart, [*found.untested]) == ((), (), ["away"])
        assert found.runner_up == "away"
        (panel,) = compared("near", "away", records).panels
        assert found.untested["away"] == panel.why_not
        assert f"away: {panel.why_not}." in found.sentences[0]

    def test_answers_that_cannot_be_read_leave_a_method_untested(self) -> None:
        records = (*REFERENCES, *NEAR, *(replace(r, evaluations={}) for r in FAR))
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert [*found.untested] == ["far"]
        assert "has no evaluation of epoch 2" in found.untested["far"]

    def test_no_rivals_without_a_best_setting(self) -> None:
        records = (*REFERENCES, run("a", [(0.1, off(0.1))]))
        assert rivals(table(records), records, *TINY) is None


Qualities = Mapping[str, Sequence[float] | None]


def best(model: str, qualities: Qualities) -> list[Best]:
    """A panel: log10 Forget Quality of each method's best setting, by seed; None without one."""
    found: list[Best] = []
    for method, values in qualities.items():
        metrics = [Numbers(log10_forget_quality=v) for v in values or ()]
        rows = tuple(
            TableRow(
                run_id=f"{model}-{method}-{seed}",
                kind="run",
                model=model,
                forget_fraction=0.1,
                method=method,
                family=method,
                hyperparameters={},
                learning_rate=1e-5,
                seed=seed,
                epoch=1,
                status="finished",
                metrics=of_seed,
            )
            for seed, of_seed in enumerate(metrics)
        )
        setting = Setting(model, 0.1, method, method, 1e-5, 1, rows, {}) if rows else None
        found.append(Best(model, 0.1, method, method, setting))
    return found


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ([], ()),
        ([-1.0], (1.0,)),
        ([-3.0, -1.0, -2.0], (3.0, 1.0, 2.0)),
        # Places 1 and 2 are shared: (1 + 2) / 2.
        ([-1.0, -1.0, -2.0], (1.5, 1.5, 3.0)),
        # Nobody is behind the two without a number: (2 + 3) / 2.
        ([None, -1.0, None], (2.5, 1.0, 2.5)),
        ([None, None], (1.5, 1.5)),
    ],
)
def test_mid_ranks_by_hand(values: list[float | None], ranks: tuple[float, ...]) -> None:
    assert mid_ranks(values) == ranks


def test_means_over_panels() -> None:
    found = rank_methods(
        best("a", {"x": [-1.0], "y": [-2.0], "z": [-3.0]})
        + best("b", {"x": [-1.0], "y": [-1.0], "z": None})
    )
    assert found.panels == (("a", 0.1), ("b", 0.1))
    text = [(one.method, one.places, one.mean, one.without) for one in found.ranks]
    assert text == [
        ("x", (1.0, 1.5), 1.25, 0),
        ("y", (2.0, 1.5), 1.75, 0),
        ("z", (3.0, 3.0), 3.0, 1),
    ]
    # Two panels, drawn twice: both ends are a panel drawn twice, a quarter of all cases each.
    assert [(one.low, one.high) for one in found.ranks] == [(1.0, 1.5), (1.5, 2.0), (3.0, 3.0)]
    assert found.summary == (
        "Ranks of 3 methods by their best settings, from 2 panels (models × forget fractions). "
        "Last because no setting keeps its utility: z (1 of 2)."
    )


def test_one_panel_without_seeds_has_no_interval() -> None:
    found = rank_methods(best("a", {"x": [-1.0], "y": None}))
    assert [(one.mean, one.low, one.high) for one in found.ranks] == [
        (1.0, None, None),
        (2.0, None, None),
    ]
    assert "one panel: they hold for this model and forget fraction only." in found.summary
    assert found.summary.endswith("keeps its utility: y.")


def test_seeds_are_resampled_in_each_panel() -> None:
    # x is -1 and -5, y is always -3: of x's four resamples one is -1, two are -3, one is -5, so
    # that it is first, ties, or is second, a quarter, a half and a quarter of all times.
    found = rank_methods(best("a", {"x": [-1.0, -5.0], "y": [-3.0, -3.0]}))
    assert [(one.mean, one.low, one.high) for one in found.ranks] == [(1.5, 1.0, 2.0)] * 2
    inner = rank_methods(best("a", {"x": [-1.0, -5.0], "y": [-3.0]}), level=0.4)
    assert [(one.low, one.high) for one in inner.ranks] == [(1.5, 1.5)] * 2


def test_methods_that_did_not_run_everywhere_are_left_out() -> None:
    found = rank_methods(best("a", {"x": [-2.0], "y": [-1.0]}) + best("b", {"x": [-1.0]}))
    assert [(one.method, one.places) for one in found.ranks] == [("x", (1.0, 1.0))]
    assert found.left_out == ("y",)
    assert found.summary.endswith("Left out because not run on every panel: y.")


def test_nothing_ran() -> None:
    found = rank_methods([])
    assert (found.panels, found.ranks, found.left_out) == ((), (), ())
