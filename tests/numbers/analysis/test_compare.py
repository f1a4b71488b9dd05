"""Comparison of two methods, from Python and the command line."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.compare import PanelComparison, Side, compare, training_differences
from unlearnbench.analysis.comparison_text import verdict
from unlearnbench.analysis.named_contender import find_contender, with_retain_term
from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.results.records import Record
from unlearnbench.stats.ks_test import ks_test
from unlearnbench.stats.paired_test import PairedTest

from ...made_up_numbers import write_with_made_up_numbers
from .conftest import (
    FAR,
    GOAL,
    NEAR,
    REFERENCES,
    TINY,
    N,
    attacked_by,
    choosing,
    chosen,
    compared,
    evaluation,
    off,
    reference,
    run,
    side,
)


def sides_of(a: str, b: str, records: Sequence[Record]) -> tuple[PanelComparison, Side, Side]:
    """The only panel of a comparison and its sides."""
    (panel,) = compared(a, b, records).panels
    assert panel.a is not None
    assert panel.b is not None
    return panel, panel.a, panel.b


def paired(panel: PanelComparison) -> PairedTest:
    assert panel.test is not None
    return panel.test


class TestCompare:
    def test_the_side_nearer_to_the_retain_model_is_better(self) -> None:
        panel, a, _ = sides_of("near", "far", (*REFERENCES, *NEAR, *FAR))
        test = paired(panel)
        assert panel.better is a
        assert (test.n, test.seeds) == (N, 3)
        distances = [ks_test(off(0.2, s), GOAL) for s in range(3)]
        mean = np.mean([one.statistic for one in distances if one is not None])
        assert test.distance_a == pytest.approx(mean)
        assert panel.p_adjusted == test.p_value < 0.001
        (turned,) = compared("far", "near", (*REFERENCES, *NEAR, *FAR)).panels
        assert turned.better is turned.b

    def test_better_requires_a_small_p_and_an_interval_without_0(self) -> None:
        panel, *_ = sides_of("near", "far", (*REFERENCES, *NEAR, *FAR))
        assert replace(panel, p_adjusted=0.05).better is not None
        assert replace(panel, p_adjusted=0.051).better is None
        assert replace(panel, test=replace(paired(panel), high=0.01)).better is None

    def test_shared_seeds_are_paired_and_others_in_their_order(self) -> None:
        _, a, b = sides_of("near", "far", (*REFERENCES, *NEAR, *FAR[1:]))
        assert (a.seeds, b.seeds) == ((1, 2), (1, 2))
        panel, a, b = sides_of("near", "far", (*REFERENCES, *NEAR[:2], FAR[2]))
        assert (a.seeds, b.seeds) == ((0,), (2,))
        assert "no seed in common" in " ".join(verdict(panel, "near", "far", 1))

    def test_equal_utility_is_of_the_seeds_that_are_compared(self) -> None:
        kept = (0.72, 0.72, 0.90)
        uneven = [run("a", [(u, off(0.2, s))], seed=s) for s, u in enumerate(kept)]
        even = [run("b", [(0.78, off(1.0, s))], seed=s) for s in range(3)]
        panel, a, _ = sides_of("a", "b", (*REFERENCES, *uneven, *even))
        assert (panel.equal_utility, panel.better) == (True, a)
        panel, a, b = sides_of("a", "b", (*REFERENCES, *uneven, *even[:2]))
        assert (a.utility, b.utility) == pytest.approx((0.72, 0.78))
        assert (panel.equal_utility, panel.better) == (False, None)

    def test_p_values_of_several_panels_are_adjusted(self) -> None:
        elsewhere = [replace(r, id=r.id + "x", model="other") for r in (*REFERENCES, *NEAR, *FAR)]
        third = run("near", [(0.8, off(0.2))], model="third")
        found = compared("near", "far", (*REFERENCES, *NEAR, *FAR, *elsewhere, third))
        assert [panel.model for panel in found.panels] == ["other", "tiny"]
        for panel in found.panels:
            assert panel.p_adjusted == 2 * paired(panel).p_value
            text = verdict(panel, "near", "far", 2)
            assert "p = 0.0002 (Holm-adjusted over 2 panels)" in text[1]
        assert found.only_one == ("only near ran on third, forget 10 %",)

    def test_a_truth_ratio_that_is_not_a_number(self) -> None:
        broken = off(0.2)
        broken[3] = np.nan
        odd = replace(NEAR[0], evaluations={2: evaluation(broken)})
        (panel,) = compared("near", "far", (*REFERENCES, odd, *FAR)).panels
        assert (panel.test, panel.better) == (None, None)
        assert "not a number" in verdict(panel, "near", "far", 0)[0]


class TestChoice:
    """Correction for the number of settings that a side was chosen from."""

    MANY = tuple(
        run("many", [(0.80 + i / 1000, off(0.5, 20 + i))], learning_rate=1e-5 * (1 + i))
        for i in range(9)
    )

    def test_counts_are_stated_and_settings_about_as_good_are_weighed(self) -> None:
        records = (*REFERENCES, run("one", [(0.8, off(1.0))]), *self.MANY)
        panel, a, b = sides_of("one", "many", records)
        test = paired(panel)
        assert (a.tried, b.tried) == test.choices == (1, 9)
        text = " ".join(verdict(panel, "one", "many", 1))
        assert "favours the method with more settings tried (one: 1, many: 9, as learning" in text
        alone = [r for r in self.MANY if r.id == b.runs[0]]
        single = paired(sides_of("one", "many", (*REFERENCES, records[2], *alone))[0])
        assert single.difference == test.difference
        assert single.p_value <= test.p_value
        assert single.high < test.high or single.low > test.low

    def test_distant_settings_are_counted_but_not_tested(self) -> None:
        far_off = run("many", [(0.8, off(3.0))], learning_rate=1.0)
        useless = run("many", [(0.3, off(0.5))], learning_rate=2.0)
        records = (*REFERENCES, run("one", [(0.8, off(1.0))]), *self.MANY, far_off, useless)
        panel, _, b = sides_of("one", "many", records)
        assert (b.tried, paired(panel).choices) == (11, (1, 9))

    def test_a_choice_on_other_seeds_is_compared_on_its_own(self) -> None:
        def merit(one: Record) -> tuple[float, float]:
            metrics = one.epochs[0].metrics
            return metrics["log10_forget_quality"] or 0.0, metrics["model_utility"] or 0.0

        rate = max(self.MANY, key=merit).learning_rate
        seeds = [
            run("many", [(0.81, off(0.5, 40 + s))], seed=s, learning_rate=rate) for s in range(1, 4)
        ]
        records = (*REFERENCES, *NEAR, *self.MANY, *seeds)
        sweep = choosing((*REFERENCES, *self.MANY, *seeds), seeds=range(4))
        many = find_contender("many", "many", sweep)
        (panel,) = compare(side("near", records), many).panels
        assert panel.b is not None
        assert (panel.b.tried, panel.b.chosen_on) == (9, (0,))
        assert panel.b.runs == tuple(r.id for r in seeds[:2]), "of the seeds that near has, too"
        assert paired(panel).choices[1] == 1


def changed(records: Sequence[Record], **fields: Any) -> list[Record]:
    return [replace(record, **fields) for record in records]


HALF = changed(FAR, precision="bfloat16")
ELSEWHERE = changed((*REFERENCES, *FAR), model="other")
PROFILE = changed((*REFERENCES, *FAR), profile=OPEN_UNLEARNING.id)
RETAIN = (REFERENCES[0], reference("retain", 0.9, off(0.3)), *FAR)
QUESTIONS = changed(FAR, evaluations={2: evaluation(GOAL, prefix="Where was")})
FEWER = changed(FAR, evaluations={2: evaluation(GOAL[:-1])})
UNREAD = changed(FAR, evaluations={})


@pytest.mark.parametrize(
    ("of_a", "of_b", "message"),
    [
        ((*REFERENCES, *NEAR), PROFILE, f"by profile {TOFU.id}, far by {OPEN_UNLEARNING.id}"),
        ((*REFERENCES, *NEAR), [*changed(REFERENCES, precision="bfloat16"), *HALF], "bfloat16"),
        ((*REFERENCES, *NEAR), [*REFERENCES, *QUESTIONS], "only answers to the same questions"),
        ((*REFERENCES, *NEAR), [*REFERENCES, *FEWER], "has 39 forget questions, not the retain"),
        ((*REFERENCES, *NEAR), RETAIN, "measured from different retain models"),
        ((*REFERENCES, *NEAR), ELSEWHERE, "ran on tiny, forget 10 %, far on other, forget 10 %"),
        ((REFERENCES[0], *NEAR), (REFERENCES[0], *FAR), "near: no evaluated retain model of tiny"),
        ((*REFERENCES, *NEAR), [*REFERENCES, *UNREAD], "has no evaluation of epoch 2"),
    ],
)
def test_what_does_not_compare_is_refused(
    of_a: Sequence[Record], of_b: Sequence[Record], message: str
) -> None:
    with pytest.raises(EvaluationError, match=re.escape(message)):
        compare(side("near", of_a), side("far", of_b))


def test_the_same_runs_are_refused_and_a_retain_model_may_be_rounded() -> None:
    one = side("near", (*REFERENCES, *NEAR))
    with pytest.raises(EvaluationError, match="near and near are the same runs: name two that"):
        compare(one, one)
    again = (REFERENCES[0], reference("retain", 0.9, GOAL * (1 + 1e-6)), *FAR)
    assert compare(one, side("far", again)).panels[0].test


def test_no_comparison_from_an_invalid_start_model() -> None:
    blank = (reference("fine-tuned", 0.01, off(3.0)), REFERENCES[1])
    (panel,) = compared("near", "far", (*blank, *NEAR, *FAR)).panels
    assert (panel.better, panel.test) == (None, None)
    assert panel.why_not.startswith("The start model knows nothing: its Model Utility is 0.01")


def test_the_command_compares_folders_also_under_an_attack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Relearning gives back what the first method has hidden, and nothing of the second."""
    hidden = attacked_by([*REFERENCES, *NEAR], 2.0, "relearning@13")
    lasting = attacked_by([*REFERENCES, *FAR], 0.0, "relearning@13")
    for folder, records in (("mine", hidden), ("yours", lasting)):
        named = [replace(record, id=record.id.replace(".", "-")) for record in records]
        write_with_made_up_numbers(named, tmp_path / folder)
    words = ["compare", "near", f"{tmp_path}/yours:far", "--in", f"{tmp_path}/mine", "--json"]

    def compared_by(*more: str) -> Any:
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)

    found = compared_by("--within", "0.05")
    (panel,) = found["panels"]
    assert (found["tolerance"], panel["better"], panel["b"]["setting"]) == (0.05, "near", "far")
    assert panel["test"]["low"] < panel["test"]["high"] < 0
    assert " (within 0.05): " in found["rule"]
    (panel,) = compared_by("--under", "relearning")["panels"]
    assert panel["better"].endswith("far under relearning@13")
    assert panel["a"]["utility"] == pytest.approx(0.8), "kept without the attack"


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (run("b", [(0.80, off(2.0))]), "a forgets more than b at equal utility (Model Utility 0.8"),
        (run("b", [(0.80, off(0.2, 9))]), "these runs do not show whether a or b forgets more at"),
        (run("b", [(0.75, off(1.0))]), "a forgets more than b and keeps more utility (Model Util"),
    ],
)
def test_the_verdict_names_the_better_side(b: Record, said: str) -> None:
    panel, *_ = sides_of("a", "b", (*REFERENCES, run("a", [(0.80, off(0.2))]), b))
    claim, sureness, *_ = verdict(panel, "a", "b", 1)
    assert said in claim
    assert f"has p = {panel.p_adjusted:.2g} and a 95 % interval from" in sureness


class TestUnequal:
    """Settings in which the methods differ, and that no number shows."""

    def spec(self, **more: Any) -> dict[str, Any]:
        training = {"weight_decay": more.pop("weight_decay", 0.0)}
        return {"spec": {"method": {"hyperparameters": more}, "training": training}}

    def test_between_two_methods(self) -> None:
        a = run("a", [(0.8, off(0.2))], **self.spec(ignore_first_answer_tokens=1, beta=0.1))
        b = run("b", [(0.8, off(1.0))], **self.spec(ignore_first_answer_tokens=0, weight_decay=0.1))
        (panel,) = compared("a", "b", (*REFERENCES, a, b)).panels
        assert panel.unequal == (
            "ignore_first_answer_tokens is 1 for a and 0 for b",
            "training.weight_decay is 0 for a and 0.1 for b",
        )

    def test_between_settings_of_one_method(self) -> None:
        runs = [run("a", [(0.8, off(0.2))], learning_rate=r, **self.spec(beta=r)) for r in (1, 2)]
        assert training_differences({str(one.learning_rate): one for one in runs}) == ()

    def test_among_many_methods(self) -> None:
        values = {"a": 1, "b": 0, "c": 0, "d": 0}
        runs = {
            name: run(name, [], **self.spec(ignore_first_answer_tokens=v))
            for name, v in values.items()
        }
        runs["a"].spec["method"]["hyperparameters"]["beta"] = 0.1
        assert training_differences(runs) == (
            "ignore_first_answer_tokens is 1 for a and 0 for b, c, d",
        )
        still = replace(runs["d"], learning_rate=None, spec={"training": {"weight_decay": 9}})
        assert len(training_differences(runs | {"d": still})) == 1, (
            "what trains nothing has no rules of training"
        )


def test_under_an_attack_a_run_keeps_what_it_keeps_without() -> None:
    records = attacked_by([*REFERENCES, *NEAR], 2.0, "relearning@13")
    results = Results.of([*records, *FAR], name="")
    under = find_contender("near", "near", results, "relearning@13")
    assert [(row.family, row.epoch, row.kept) for row in under.rows] == [("near", 2, 0.80)] * 3
    before = {row.run_id: row.forgotten for row in results.rows if row.epoch == 2}
    assert all((row.forgotten or 0) < (before[row.run_id] or 0) for row in under.rows)
    assert under.retain(TINY) is next(
        record.attacked_evaluations[0, "relearning@13"]
        for record in records
        if record.kind == "retain" and record.attacked
    )
    assert under.evaluation(NEAR[0].id, 2) is not NEAR[0].evaluations[2]
    with pytest.raises(EvaluationError, match="has no evaluation of epoch 1"):
        under.evaluation(NEAR[0].id, 1)


def test_a_seed_that_an_attack_lacks_does_not_disappear_from_a_mean() -> None:
    records = attacked_by([*REFERENCES, *NEAR, *FAR], 2.0, "relearning@13")
    lacking = [
        replace(one, attacked=(), attacked_evaluations={}) if one.id == NEAR[1].id else one
        for one in records
    ]
    results = Results.of(lacking, name="")
    near, far = (find_contender(name, name, results, "relearning@13") for name in ("near", "far"))
    (panel,) = compare(near, far, 0.02).panels
    assert (panel.a, panel.b) == (None, None)
    assert panel.why_not == (
        "No setting of near keeps at least 80 % of the start model's utility (settings without a "
        "mean: relearning@13 did not attack seed 1 at epoch 2)"
    )


def test_a_seed_that_collapsed_does_not_disappear_from_a_mean() -> None:
    """The mean of the other two would be the better one for the collapse."""
    ended = run("near", [(0.88, off(1.5, 2))], seed=2, status="collapsed")
    near = [replace(one, spec={**one.spec, "evaluate_at": [1, 2]}) for one in (*NEAR[:2], ended)]
    (panel,) = compared("near", "far", [*REFERENCES, *near, *FAR]).panels
    assert panel.a is not None
    assert (panel.a.epoch, panel.a.seeds) == (1, (0, 1, 2))


def test_a_run_that_is_named_by_its_id_stands_for_itself() -> None:
    """Also if another seed of its setting ended early."""
    ended = run("near", [(0.88, off(1.5, 2))], seed=2, status="collapsed")
    near = [replace(one, spec={**one.spec, "evaluate_at": [1, 2]}) for one in (*NEAR[:2], ended)]
    (panel,) = compared(NEAR[0].id, "far", [*REFERENCES, *near, *FAR]).panels
    assert panel.a is not None
    assert (panel.a.epoch, panel.a.seeds) == (2, (0,))


A, KEPT = run("a", [(0.89, off(0.2))]), run("a", [(0.87, off(0.5))])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # b's epoch 2 is best, but the best setting of higher utility sets the level.
        (KEPT, run("b", [(0.86, off(1.0)), (0.75, off(0.1))]), (1, 1, True)),
        # Of several settings at the level the one of highest quality is compared.
        (KEPT, run("b", [(0.88, off(2.0)), (0.86, off(0.9)), (0.85, off(1.5))]), (1, 2, True)),
        # A side that is better in both is compared without equal utility,
        (A, run("b", [(0.75, off(1.0))]), (1, 1, False)),
        # also if its candidate at the level is: b's epoch 1 keeps and forgets more than a's best.
        (
            run("a", [(0.80, off(1.0))]),
            run("b", [(0.89, off(0.4)), (0.75, off(0.1))]),
            (1, 1, False),
        ),
        # The tolerance does not reach below the required utility, 0.8 · 0.9.
        (
            run("a", [(0.73, off(0.5))]),
            run("b", [(0.725, off(1.0)), (0.715, off(0.1))]),
            (1, 1, True),
        ),
        (
            A,
            run("b", [(0.5, off(0.1))]),
            "No setting of b keeps at least 80 % of the start model's utility",
        ),
    ],
)
def test_settings_of_equal_utility_are_matched(a: Record, b: Record, expected: Any) -> None:
    """All are off by 3 at the start; the less they are off, the more was forgotten."""
    assert chosen("a", "b", (*REFERENCES, a, b)) == expected
    if not isinstance(expected, str):
        of_a, of_b, equal = expected
        assert chosen("b", "a", (*REFERENCES, a, b)) == (of_b, of_a, equal)


def test_no_setting_of_equal_utility() -> None:
    b = run("b", [(0.75, off(0.5)), (0.73, off(0.1))])
    records = (*REFERENCES, run("a", [(0.89, off(1.0))]), b)
    assert (
        "b's best setting forgets more and has less utility than a's (0.730 and 0.890)"
        in chosen("a", "b", records)
    )
    assert chosen("a", "b", records, tolerance=0.14) == (1, 1, True)


class TestFind:
    RECORDS = (
        *REFERENCES,
        *NEAR,
        run("near", [(0.8, off(2.0))], learning_rate=1e-4, id="0a1b"),
        run("far", [(0.8, off(2.0))], id="0a2c"),
    )

    @pytest.mark.parametrize(
        ("name", "count"),
        [("near", 7), ("near lr 1e-05", 6), ("near  lr 0.0001", 1), ("0a1b", 1), ("0a2", 1)],
    )
    def test_names(self, name: str, count: int) -> None:
        assert len(side(name, self.RECORDS).rows) == count

    def test_a_label_with_hyper_parameters(self) -> None:
        specs = [{"method": {"hyperparameters": {"beta": b}}} for b in (0.1, 0.5)]
        records = [run("npo", [(0.8, GOAL)], spec=spec, id=f"r{i}") for i, spec in enumerate(specs)]
        assert [r.run_id for r in side("npo (beta=0.5)", records).rows] == ["r1"]
        assert len(side("npo", records).rows) == 2

    @pytest.mark.parametrize(
        ("name", "families", "full"),
        [
            ("npo", ["idk", "npo+nll"], "npo+nll"),
            ("npo  lr 1e-05", ["npo+nll"], "npo+nll lr 1e-05"),
            ("npo", ["npo", "npo+nll"], "npo"),
            ("npo+kl", ["npo+nll"], "npo+kl"),
            ("0a1b", ["npo+nll"], "0a1b"),
        ],
    )
    def test_a_method_may_lack_its_only_retain_term(
        self, name: str, families: list[str], full: str
    ) -> None:
        assert with_retain_term(name, families) == full

    def test_a_method_of_several_forms_is_to_be_named_in_full(self) -> None:
        with pytest.raises(RecordError, match=r"'npo' ran in several forms: npo\+kl, npo\+nll;"):
            with_retain_term("npo", ["npo+kl", "npo+nll"])
