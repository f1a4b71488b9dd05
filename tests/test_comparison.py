"""Which settings are compared, what is refused, and the sentences that come of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.cli import main
from unlearnbench.comparing import with_retain_term
from unlearnbench.comparison import Comparison, compare
from unlearnbench.errors import EvaluationError, RecordError
from unlearnbench.evaluation.metrics import forget_quality
from unlearnbench.evaluation.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.evaluation.result import SETS, Evaluation, FloatArray, SetEvaluation
from unlearnbench.matching import Contender, find, match, rows_of
from unlearnbench.ranking import average_seeds
from unlearnbench.records import EpochResult, Record, write_record
from unlearnbench.rivals import rivals
from unlearnbench.table import table
from unlearnbench.unequal import unequal
from unlearnbench.verdict import overview, verdict

N = 40
GOAL = np.exp(np.random.default_rng(0).normal(size=N))
"""Truth ratios of the retain model."""
TINY = ("tiny", 0.1)


def off(by: float, seed: int = 0) -> FloatArray:
    """Truth ratios that are off by this in the logarithm, and a little noise."""
    ratios: FloatArray = GOAL * np.exp(by + np.random.default_rng(seed).normal(0, 0.1, N))
    return ratios


def evaluation(ratios: FloatArray, profile: str = TOFU.id, ask: str = "Who is") -> Evaluation:
    """With these truth ratios on the forget set, and whatever elsewhere."""
    n = len(ratios)
    ones, words = np.ones(n, dtype=np.int64), tuple(f"{ask} author {i}?" for i in range(n))
    loss = 10.0 - np.log(ratios)  # no loss is negative
    rows = SetEvaluation(
        *(words, words, words, loss, ones, loss, ones),
        *(np.full((n, 2), 10.0), np.ones((n, 2), dtype=np.int64), np.ones(n), np.ones(n)),
    )
    return Evaluation(profile, dict.fromkeys(SETS, rows))


def anchor(kind: Any, utility: float, ratios: FloatArray, **more: Any) -> Record:
    return run(kind, [(utility, ratios)], kind=kind, learning_rate=None, first=0, **more)


def run(
    method: str, epochs: Sequence[tuple[float, FloatArray]], *, first: int = 1, **more: Any
) -> Record:
    """A run through these (Model Utility, truth ratios)."""
    seed, rate = more.get("seed", 0), more.get("learning_rate", 1e-5)
    results: list[EpochResult] = []
    for k, (utility, ratios) in enumerate(epochs, start=first):
        found = forget_quality(ratios, GOAL[: len(ratios)])
        quality = None if found is None else found.log10_p
        metrics = {"model_utility": utility, "log10_forget_quality": quality, "ks_n": float(N)}
        metrics["ks_statistic"] = None if found is None else found.statistic
        results.append(EpochResult(k, metrics, 1.0, 1.0))
    fields: dict[str, Any] = {
        "id": f"{method}-{rate}-{seed}-{more.get('model', '')}",
        "kind": "run",
        "model": "tiny",
        "forget_fraction": 0.1,
        "method": method,
        "learning_rate": rate,
        "seed": seed,
        "spec": {"method": {"name": method}},
        "status": "finished",
        "profile": TOFU.id,
        "epochs": tuple(results),
        "evaluations": {k: evaluation(r) for k, (_, r) in enumerate(epochs, start=first)},
    }
    return Record(**{**fields, **more})


ANCHORS = (anchor("fine-tuned", 0.9, off(3.0)), anchor("retain", 0.9, GOAL))
NEAR = [run("near", [(0.88, off(1.5, s)), (0.80, off(0.2, s))], seed=s) for s in range(3)]
FAR = [run("far", [(0.88, off(2.5, s)), (0.81, off(1.0, s))], seed=s) for s in range(3)]


def side(name: str, records: Sequence[Record], told: str = "") -> Contender:
    return find(name, told or name, table(records), records)


def compared(a: str, b: str, records: Sequence[Record], tolerance: float = 0.02) -> Comparison:
    return compare(side(a, records), side(b, records), tolerance)


def chosen(a: str, b: str, records: Sequence[Record], tolerance: float = 0.02) -> Any:
    found = match(side(a, records), side(b, records), TINY, tolerance)
    if found.a is None or found.b is None:
        return found.why_not
    return found.a.epoch, found.b.epoch, found.equal_utility


class TestMatch:
    """near and far are off by 3 at the start; the less they are off, the more was forgotten."""

    def test_best_settings_of_about_one_utility_are_compared(self) -> None:
        assert chosen("near", "far", (*ANCHORS, *NEAR, *FAR)) == (2, 2, True)
        assert chosen("far", "near", (*ANCHORS, *NEAR, *FAR)) == (2, 2, True)

    def test_the_best_that_keeps_more_sets_the_level(self) -> None:
        other = run("other", [(0.86, off(1.0)), (0.75, off(0.1))])
        records = (*ANCHORS, run("kept", [(0.87, off(0.5))]), other)
        assert chosen("kept", "other", records) == (1, 1, True), "not epoch 2, which is best"
        assert chosen("other", "kept", records) == (1, 1, True)

    def test_of_several_at_the_level_the_one_that_forgets_most(self) -> None:
        other = run("other", [(0.88, off(2.0)), (0.86, off(0.9)), (0.85, off(1.5))])
        records = (*ANCHORS, run("kept", [(0.87, off(0.5))]), other)
        assert chosen("kept", "other", records) == (1, 2, True)

    def test_a_side_that_keeps_more_and_forgets_more_needs_no_match(self) -> None:
        records = (*ANCHORS, run("a", [(0.89, off(0.2))]), run("b", [(0.75, off(1.0))]))
        assert chosen("a", "b", records) == (1, 1, False)
        assert chosen("b", "a", records) == (1, 1, False)

    def test_the_best_at_the_level_may_keep_more_and_forget_more_itself(self) -> None:
        # a's best keeps most; of b, epoch 1 keeps still more, and forgets more than a's.
        b = run("b", [(0.89, off(0.4)), (0.75, off(0.1))])
        records = (*ANCHORS, run("a", [(0.80, off(1.0))]), b)
        assert chosen("a", "b", records) == (1, 1, False)

    def test_utilities_that_do_not_meet_are_told(self) -> None:
        records = (*ANCHORS, run("a", [(0.89, off(1.0))]), run("b", [(0.75, off(0.1))]))
        assert chosen("a", "b", records) == (
            "No setting of b has the utility of a's best, 0.890, within 0.02: b's best has 0.750 "
            "and forgets more. Try --within 0.14, which compares 0.890 with 0.750; or train with "
            "more epochs or learning rates"
        )
        assert chosen("b", "a", records) == chosen("a", "b", records)
        assert chosen("a", "b", records, tolerance=0.15) == (1, 1, True)

    @pytest.mark.parametrize("utility", [0.7413, 0.75, 0.79, 0.8697, 0.86])
    def test_the_tolerance_that_is_proposed_answers_and_less_does_not(self, utility: float) -> None:
        b = run("b", [(utility, off(0.5)), (0.73, off(0.1))])
        records = (*ANCHORS, run("a", [(0.89, off(1.0))]), b)
        told = chosen("a", "b", records)
        within = float(str(told).partition("--within ")[2].partition(",")[0])
        assert f"compares 0.890 with {utility:.3f}" in told
        assert within - (0.89 - utility) == pytest.approx(0.0005, abs=0.0005001)
        assert chosen("a", "b", records, tolerance=within) == (1, 1, True)
        assert isinstance(chosen("a", "b", records, tolerance=within - 0.001), str)

    def test_without_a_setting_that_keeps_its_utility(self) -> None:
        records = (*ANCHORS, run("a", [(0.89, off(1.0))]), run("b", [(0.5, off(0.1))]))
        wanted = "No setting of b keeps 80 % of the fine-tuned model's utility"
        assert chosen("a", "b", records) == wanted

    def test_a_tolerance_lets_nothing_through_that_the_rule_does_not(self) -> None:
        b = run("b", [(0.725, off(1.0)), (0.715, off(0.1))])  # 0.8 · 0.9 is 0.72
        records = (*ANCHORS, run("a", [(0.73, off(0.5))]), b)
        assert chosen("a", "b", records) == (1, 1, True)


class TestCompare:
    def test_the_nearer_one_is_better(self) -> None:
        found = compared("near", "far", (*ANCHORS, *NEAR, *FAR))
        (panel,) = found.panels
        assert panel.a is not None
        assert panel.test is not None
        assert panel.better is panel.a
        assert (panel.test.n, panel.test.seeds) == (N, 3)
        distances = [forget_quality(off(0.2, s), GOAL) for s in range(3)]
        mean = np.mean([one.statistic for one in distances if one is not None])
        assert panel.test.distance_a == pytest.approx(mean)
        assert panel.p_adjusted == panel.test.p_value < 0.001
        (turned,) = compared("far", "near", (*ANCHORS, *NEAR, *FAR)).panels
        assert turned.better is turned.b

    def test_the_compared_epochs_are_read_and_no_others(self) -> None:
        class Lazy(dict[int, Evaluation]):
            def __getitem__(self, epoch: int) -> Evaluation:
                read.append(epoch)
                return super().__getitem__(epoch)

        read: list[int] = []
        runs = [replace(r, evaluations=Lazy(r.evaluations)) for r in (*NEAR, *FAR)]
        compared("near", "far", (*ANCHORS, *runs))
        assert read == [2] * 6

    def test_methods_that_differ_by_noise_are_undecided(self) -> None:
        twin = [run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3)]
        (panel,) = compared("near", "twin", (*ANCHORS, *NEAR, *twin)).panels
        assert panel.test is not None
        assert panel.better is None

    def test_who_pays_with_utility_is_not_better(self) -> None:
        (panel,) = compared("near", "far", (*ANCHORS, *NEAR, *FAR)).panels
        assert panel.a is not None
        assert panel.better is panel.a
        paid = replace(panel, equal_utility=False)
        assert panel.a.utility < 0.81
        assert paid.better is None
        kept = replace(paid, a=replace(panel.a, utility=0.85))
        assert kept.better is kept.a

    def test_better_asks_for_a_small_p_and_an_interval_without_0(self) -> None:
        (panel,) = compared("near", "far", (*ANCHORS, *NEAR, *FAR)).panels
        assert panel.test is not None
        assert panel.better is not None
        assert replace(panel, p_adjusted=0.05).better is not None
        assert replace(panel, p_adjusted=0.051).better is None
        wide = replace(panel, test=replace(panel.test, high=0.01))
        assert wide.better is None
        told = verdict(wide, "near", "far", 1)[1]
        assert "The answers differ, but the interval holds 0." in told

    def test_shared_seeds_are_paired_and_others_in_their_order(self) -> None:
        (panel,) = compared("near", "far", (*ANCHORS, *NEAR, *FAR[1:])).panels
        assert panel.a is not None
        assert panel.b is not None
        assert (panel.a.seeds, panel.b.seeds) == ((1, 2), (1, 2))
        (panel,) = compared("near", "far", (*ANCHORS, *NEAR[:2], FAR[2])).panels
        assert panel.a is not None
        assert panel.b is not None
        assert (panel.a.seeds, panel.b.seeds) == ((0,), (2,))
        assert "no seed in common" in " ".join(verdict(panel, "near", "far", 1))

    def test_p_values_of_several_panels_are_adjusted(self) -> None:
        elsewhere = [replace(r, id=r.id + "x", model="other") for r in (*ANCHORS, *NEAR, *FAR)]
        third = run("near", [(0.8, off(0.2))], model="third")
        found = compared("near", "far", (*ANCHORS, *NEAR, *FAR, *elsewhere, third))
        assert [panel.model for panel in found.panels] == ["other", "tiny"]
        for panel in found.panels:
            assert panel.test is not None
            assert panel.p_adjusted == 2 * panel.test.p_value
            told = verdict(panel, "near", "far", 2)
            assert "p = 0.0002 (Holm-adjusted over 2 panels)" in told[1]
        assert found.only_one == ("only near ran on third, forget 10 %",)
        assert overview(found) == (
            "Of 2 panels (models × forget fractions), near forgets more on 2, far on 0; 0 are "
            "undecided."
        )

    def test_a_truth_ratio_that_is_not_a_number(self) -> None:
        broken = off(0.2)
        broken[3] = np.nan
        odd = replace(NEAR[0], evaluations={2: evaluation(broken)})
        (panel,) = compared("near", "far", (*ANCHORS, odd, *FAR)).panels
        assert (panel.test, panel.better) == (None, None)
        assert "not a number" in verdict(panel, "near", "far", 0)[0]

    def test_one_setting_under_two_names(self) -> None:
        records = (*ANCHORS, *NEAR, run("near", [(0.8, off(2.0))], learning_rate=1e-4))
        (panel,) = compared("near", "near lr 1e-05", records).panels
        assert panel.why_not == "The best setting of both is the same one"


class TestChoice:
    """How many settings a side had to choose from, and what came of it."""

    MANY = tuple(
        run("many", [(0.80 + i / 1000, off(0.5, 20 + i))], learning_rate=1e-5 * (1 + i))
        for i in range(9)
    )

    def test_counts_are_stated_and_settings_about_as_good_are_weighed(self) -> None:
        records = (*ANCHORS, run("one", [(0.8, off(1.0))]), *self.MANY)
        (panel,) = compared("one", "many", records).panels
        assert panel.a is not None
        assert panel.b is not None
        assert panel.test is not None
        assert (panel.a.tried, panel.b.tried) == (1, 9)
        assert panel.test.choices == (1, 9)
        told = " ".join(verdict(panel, "one", "many", 1))
        assert "favours the method with more settings tried (one: 1, many: 9, as learning" in told
        alone = [r for r in self.MANY if r.id == panel.b.runs[0]]
        (single,) = compared("one", "many", (*ANCHORS, records[2], *alone)).panels
        assert single.test is not None
        assert single.test.difference == panel.test.difference
        assert single.test.p_value <= panel.test.p_value
        assert single.test.high < panel.test.high or single.test.low > panel.test.low
        assert "settings tried" not in " ".join(verdict(single, "one", "many", 1))

    def test_settings_that_are_far_off_or_keep_too_little_are_counted_and_not_weighed(self) -> None:
        far_off = run("many", [(0.8, off(3.0))], learning_rate=1.0)
        useless = run("many", [(0.3, off(0.5))], learning_rate=2.0)
        records = (*ANCHORS, run("one", [(0.8, off(1.0))]), *self.MANY, far_off, useless)
        (panel,) = compared("one", "many", records).panels
        assert panel.b is not None
        assert panel.test is not None
        assert (panel.b.tried, panel.test.choices) == (11, (1, 9))

    def test_a_choice_on_other_seeds_is_compared_on_its_own(self) -> None:
        seeds = [run("many", [(0.81, off(0.5, 40 + s))], seed=s) for s in range(1, 4)]
        records = (*ANCHORS, *NEAR, *self.MANY, *seeds)
        choice = {
            **{"model": "tiny", "forget_fraction": 0.1, "method": "many", "epoch": 1},
            **{"candidates": 9, "reported_runs": [r.id for r in seeds]},
        }
        selection = {"chosen_on_seeds": [0], "choices": [choice]}
        many = replace(side("many", records), selection=selection)
        (panel,) = compare(side("near", records), many).panels
        assert panel.b is not None
        assert panel.test is not None
        assert (panel.b.tried, panel.b.chosen_on, panel.b.runs) == (
            9,
            (0,),
            tuple(r.id for r in seeds[:2]),
        ), "of the seeds that near has, too"
        assert panel.test.choices[1] == 1
        told = " ".join(verdict(panel, "near", "many", 1))
        assert "many was chosen from 9 settings on seed 0, and is compared on other seeds" in told

    def test_settings_with_fewer_seeds_take_turns(self) -> None:
        chosen = tuple(table(NEAR))[:1] * 3
        (setting,) = average_seeds(table(FAR[:2]))[:1]
        assert [row.seed for row in rows_of(setting, chosen)] == [0, 0, 0]
        other = tuple(replace(row, seed=7 + i) for i, row in enumerate(chosen))
        assert [row.seed for row in rows_of(setting, other)] == [0, 1, 0]


class TestUnequal:
    """Settings in which the methods differ, and that no number shows."""

    def spec(self, **more: Any) -> dict[str, Any]:
        training = {"weight_decay": more.pop("weight_decay", 0.0)}
        return {"spec": {"method": {"hyperparameters": more}, "training": training}}

    def test_between_two_methods(self) -> None:
        a = run("a", [(0.8, off(0.2))], **self.spec(ignore_first_answer_tokens=1, beta=0.1))
        b = run("b", [(0.8, off(1.0))], **self.spec(ignore_first_answer_tokens=0, weight_decay=0.1))
        (panel,) = compared("a", "b", (*ANCHORS, a, b)).panels
        assert panel.unequal == (
            "ignore_first_answer_tokens is 1 for a and 0 for b",
            "training.weight_decay is 0 for a and 0.1 for b",
        )
        told = verdict(panel, "a", "b", 1)[2]
        assert "they are not trained alike: ignore_first_answer_tokens is 1 for a and 0 for" in told

    def test_between_settings_of_one_method(self) -> None:
        runs = [run("a", [(0.8, off(0.2))], learning_rate=r, **self.spec(beta=r)) for r in (1, 2)]
        assert unequal({str(one.learning_rate): one for one in runs}) == ()

    def test_among_many_methods(self) -> None:
        values = {"a": 1, "b": 0, "c": 0, "d": 0}
        runs = {
            name: run(name, [], **self.spec(ignore_first_answer_tokens=v))
            for name, v in values.items()
        }
        runs["a"].spec["method"]["hyperparameters"]["beta"] = 0.1
        assert unequal(runs) == ("ignore_first_answer_tokens is 1 for a and 0 for the other 3",)
        still = replace(runs["d"], learning_rate=None, spec={"training": {"weight_decay": 9}})
        assert len(unequal(runs | {"d": still})) == 1, (
            "what trains nothing has no rules of training"
        )


class TestRivals:
    """Which methods the leading one is not told apart from."""

    TWIN = tuple(run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3))
    AWAY = run("away", [(0.95, off(2.9))])

    def test_told_apart_or_not(self) -> None:
        records = (*ANCHORS, *NEAR, *FAR, *self.TWIN)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert {found.leader, *found.same} == {"near", "twin"}
        assert (found.apart, found.untested) == (("far",), ())
        assert (found.questions, found.resolution) == (40, 0.325)
        assert set(found.near_retain) == {"near", "twin"}
        first, second = found.sentences
        assert first.startswith(f"{found.leader} leads, but is not told apart from 1 method: ")
        assert second.startswith("All 2 of them lie below D = 0.325, the least that 40 questions")

    def test_agrees_with_compare(self) -> None:
        records = (*ANCHORS, *NEAR, *FAR, *self.TWIN)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        for other, better in [(found.same[0], None), ("far", found.leader)]:
            (panel,) = compared(found.leader, other, records).panels
            assert (panel.better and panel.better.name) == better

    def test_without_a_rival(self) -> None:
        records = (*ANCHORS, *NEAR, *FAR)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert found.sentences[0].startswith(
            "near forgets more than 1 method tested (paired test over"
        )

    def test_no_test_is_named_with_the_command_that_states_why(self) -> None:
        records = (*ANCHORS, *NEAR, self.AWAY)
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert (found.same, found.apart, found.untested) == ((), (), ("away",))
        assert "`unlearnbench compare near away` states why." in found.sentences[0]

    def test_answers_that_cannot_be_read_leave_a_method_untested(self) -> None:
        records = (*ANCHORS, *NEAR, *(replace(r, evaluations={}) for r in FAR))
        found = rivals(table(records), records, *TINY)
        assert found is not None
        assert found.untested == ("far",)

    def test_no_setting_keeps_its_utility(self) -> None:
        records = (*ANCHORS, run("a", [(0.1, off(0.1))]))
        assert rivals(table(records), records, *TINY) is None


class TestRefused:
    def refusal(self, a: Contender, b: Contender) -> str:
        with pytest.raises(EvaluationError) as caught:
            compare(a, b)
        return str(caught.value)

    def test_the_same_runs(self) -> None:
        one = side("near", (*ANCHORS, *NEAR))
        assert self.refusal(one, one) == "near and near are the same runs: name two that differ"

    def test_other_profiles(self) -> None:
        other = [replace(r, profile=OPEN_UNLEARNING.id) for r in (*ANCHORS, *FAR)]
        told = self.refusal(side("near", (*ANCHORS, *NEAR)), side("far", other))
        assert f"near was evaluated by profile {TOFU.id}, far by {OPEN_UNLEARNING.id}" in told
        odd = [replace(r, evaluations={2: evaluation(GOAL, OPEN_UNLEARNING.id)}) for r in FAR]
        records = (*ANCHORS, *NEAR, *odd)
        told = self.refusal(side("near", records), side("far", records))
        assert f"record {FAR[0].id} is by profile {OPEN_UNLEARNING.id}, the retain" in told

    def test_other_precisions(self) -> None:
        found = replace(evaluation(GOAL), precision="bfloat16")
        odd = [replace(r, evaluations={2: found}) for r in FAR]
        goal = replace(ANCHORS[1], evaluations={0: replace(evaluation(GOAL), precision="float32")})
        records = (ANCHORS[0], goal, *NEAR, *odd)
        told = self.refusal(side("near", records), side("far", records))
        assert f"record {FAR[0].id} is evaluated in bfloat16, the retain model in float32" in told

    def test_other_questions(self) -> None:
        odd = [replace(r, evaluations={2: evaluation(GOAL, ask="Where was")}) for r in FAR]
        records = (*ANCHORS, *NEAR, *odd)
        told = self.refusal(side("near", records), side("far", records))
        assert "as forget question 0 'Where was author 0?', the retain model 'Who is" in told

    def test_fewer_questions(self) -> None:
        odd = [replace(r, evaluations={2: evaluation(GOAL[:-1])}) for r in FAR]
        records = (*ANCHORS, *NEAR, *odd)
        told = self.refusal(side("near", records), side("far", records))
        assert "has 39 forget questions, the retain model 40" in told

    def test_other_retain_models(self) -> None:
        other = (ANCHORS[0], anchor("retain", 0.9, off(0.3)), *FAR)
        told = self.refusal(side("near", (*ANCHORS, *NEAR)), side("far", other))
        assert "measured from different retain models" in told
        again = (ANCHORS[0], anchor("retain", 0.9, GOAL * (1 + 1e-6)), *FAR)
        assert compare(side("near", (*ANCHORS, *NEAR)), side("far", again)).panels[0].test

    def test_no_panel_in_common(self) -> None:
        other = [replace(r, model="other") for r in (*ANCHORS, *FAR)]
        told = self.refusal(side("near", (*ANCHORS, *NEAR)), side("far", other))
        assert told.endswith("near ran on tiny, forget 10 %, far on other, forget 10 %")

    def test_no_retain_model(self) -> None:
        records = (ANCHORS[0], *NEAR, *FAR)
        told = self.refusal(side("near", records), side("far", records))
        assert told.startswith("near: no evaluated retain model of tiny, forget 10 %")

    def test_answers_that_are_not_there(self) -> None:
        records = (*ANCHORS, *NEAR, *(replace(r, evaluations={}) for r in FAR))
        told = self.refusal(side("near", records), side("far", records))
        assert told.startswith(f"far: record {FAR[0].id} has no answers of epoch 2")


class TestFind:
    RECORDS = (
        *ANCHORS,
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

    def test_what_it_was_taken_as_is_printed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for one in (
            *ANCHORS,
            run("npo+nll", [(0.8, off(2.0))], id="1"),
            run("idk", [(0.8, off(1.0))]),
        ):
            write_record(one, tmp_path)
        assert main(["compare", "npo", "idk", "--in", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert "npo: taken as npo+nll, the one form in which it ran" in err
        assert "npo+nll" in out

    @pytest.mark.parametrize(
        ("name", "hint"), [("nera", "did you mean 'near'?"), ("0a", ""), ("", ""), ("retain", "")]
    )
    def test_other_names(self, name: str, hint: str) -> None:
        with pytest.raises(RecordError, match="methods: far, near") as caught:
            side(name, self.RECORDS, told="it")
        assert str(caught.value).startswith(f"it: no method, setting or run {name!r}")
        assert hint in str(caught.value)


class TestSentences:
    def test_what_is_shown(self) -> None:
        (panel,) = compared("near", "far", (*ANCHORS, *NEAR, *FAR)).panels
        claim, sureness, beware, power = verdict(panel, "near", "far", 1)
        assert claim.startswith(
            "tiny, forget 10 %: near forgets more than far at equal utility (Model Utility 0.800 "
            "and 0.810). near is at D = "
        )
        assert panel.test is not None
        low, high = -panel.test.high, -panel.test.low
        assert f"has p = 0.0001 and a 95 % interval from {low:.3f} to {high:.3f}" in sureness
        assert sureness.endswith(
            "over 40 questions asked of 3 seeds. It has the same sign in 3 of 3 seeds."
        )
        assert "seed" not in beware
        assert power.startswith("With 40 forget questions, Forget Quality tells")

    def test_what_is_not_shown(self) -> None:
        twin = run("twin", [(0.80, off(0.2, 9))])
        (panel,) = compared("near", "twin", (*ANCHORS, NEAR[0], twin)).panels
        claim, sureness, beware, _ = verdict(panel, "near", "twin", 1)
        assert "these runs do not show whether near or twin forgets more at equal" in claim
        assert "would show in 80 % of cases; a smaller one may be there unseen." in sureness
        assert beware.startswith("Beware: there is 1 seed only, and the test speaks for other")

    def test_more_utility(self) -> None:
        records = (*ANCHORS, run("a", [(0.89, off(0.2))]), run("b", [(0.75, off(1.0))]))
        (panel,) = compared("b", "a", records).panels
        claim = verdict(panel, "b", "a", 1)[0]
        wanted = "a forgets more than b and keeps more utility (Model Utility 0.890 and 0.750)."
        assert wanted in claim


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`compare`, beside the folders `mine` (all runs) and `yours` (the second method's)."""
    for folder, records in (("mine", (*ANCHORS, *NEAR, *FAR)), ("yours", (*ANCHORS, *FAR))):
        for record in records:
            write_record(replace(record, id=record.id.replace(".", "-")), tmp_path / folder)

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(["compare", *(arg.replace("HERE", str(tmp_path)) for arg in args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def test_a_start_model_that_knows_nothing_has_no_better_side() -> None:
    blank = (anchor("fine-tuned", 0.01, off(3.0)), ANCHORS[1])
    (panel,) = compared("near", "far", (*blank, *NEAR, *FAR)).panels
    assert (panel.better, panel.test) == (None, None)
    assert panel.why_not.startswith("The start model knows nothing: its Model Utility is 0.01")


class TestCommand:
    def test_sentence_and_table(self, cli: Callable[..., tuple[int, str, str]]) -> None:
        code, out, err = cli("near", "far", "--in", "HERE/mine")
        assert (code, err) == (0, "")
        assert out.startswith("tiny, forget 10 %: near forgets more than far at equal utility")
        assert max(map(len, out.splitlines())) <= 100
        rows = [line.split() for line in out.splitlines() if line.startswith("tiny  ")]
        assert [row[2:7] for row in rows] == [
            ["A", "near", "1e-05", "2", "0.8"],
            ["B", "far", "1e-05", "2", "0.81"],
        ]
        assert out.rstrip().endswith("less 0.02.")

    def test_json(self, cli: Callable[..., tuple[int, str, str]]) -> None:
        code, out, _ = cli("near", "far", "--in", "HERE/mine", "--json", "--within", "0.05")
        found = json.loads(out)
        (panel,) = found["panels"]
        assert (code, found["tolerance"], panel["better"]) == (0, 0.05, "near")
        assert panel["test"]["p_value"] == panel["p_adjusted"] == 0.0001
        assert panel["test"]["low"] < panel["test"]["high"] < 0
        assert panel["told"][0].startswith("tiny, forget 10 %: near forgets more")
        assert found["rule"].startswith("Compared are the settings")

    def test_two_folders(self, cli: Callable[..., tuple[int, str, str]]) -> None:
        code, out, _ = cli("near", "HERE/yours:far", "--in", "HERE/mine", "--json")
        (panel,) = json.loads(out)["panels"]
        assert (code, panel["better"], panel["b"]["setting"]) == (0, "near", "far")

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            (("nera", "far", "--in", "HERE/mine"), "nera: no method, setting or run 'nera'; did"),
            (("near", "far", "--in", "HERE/none"), "none is no sweep's folder"),
            (("HERE/none:near", "far", "--in", "HERE/mine"), "none is no sweep's folder"),
            (("near", "near", "--in", "HERE/mine"), "are the same runs"),
        ],
    )
    def test_refusals_are_one_line(
        self, cli: Callable[..., tuple[int, str, str]], args: tuple[str, ...], told: str
    ) -> None:
        code, out, err = cli(*args)
        assert (code, out) == (2, "")
        assert told in err
        assert err.count("\n") == 1
