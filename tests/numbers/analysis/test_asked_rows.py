"""Attacks that leave rows out: their numbers beside the plain ones of the rows that they asked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.attack_text import attack_sentences
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.yardstick import yardstick
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.benchmark_schema import recorded_schema
from unlearnbench.results import asked_rows
from unlearnbench.results.asked_places import asked_places
from unlearnbench.results.asked_rows import NumbersBefore, before_rows
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import Numbers

from .conftest import record, table_row

COLUMN = "probability_forget"
ENDS = (0.7, 1.0), (0.0, 0.3), (0.0, 0.6)
"""Least and greatest probability of the start, retain and unlearned model's answers."""


def asked(
    probabilities: FloatArray, places: Sequence[int], references: Sequence[str] = ()
) -> SetEvaluation:
    """The rows at some places, whose true answers have these probabilities."""
    n = len(places)
    ones, questions = np.ones(n, dtype=np.int64), tuple(f"Who is author {i}?" for i in places)
    losses = -np.log(probabilities)
    return SetEvaluation(
        *(questions, questions, tuple(references) or questions, losses, ones, losses, ones),
        *(np.full((n, 2), 10.0), np.ones((n, 2), dtype=np.int64), np.ones(n), np.ones(n)),
    )


def attacked(
    kind: Any, plain: FloatArray, under: FloatArray, places: Sequence[int]
) -> list[Record]:
    """A model and its evaluation under a prompt that asks only the rows at some places."""
    epoch = int(kind == "run")
    numbers = {"model_utility": 0.9, "log10_forget_quality": -5.0, COLUMN: float(plain.mean())}
    stored = {epoch: Evaluation(TOFU.id, {"forget": asked(plain, range(len(plain)))})}
    model = record(kind, [numbers], kind, evaluations=stored)
    result = EpochResult(epoch, {COLUMN: float(under.mean())}, 1.0, 1.0, "paraphrase")
    evaluations = {(epoch, "paraphrase"): Evaluation(TOFU.id, {"forget": asked(under, places)})}
    result_of: dict[str, Any] = {"attacked": (result,), "attacked_evaluations": evaluations}
    if kind == "run":
        return [replace(model, **result_of)]
    other = replace(model, id=f"{kind}-attacked", epochs=(), evaluations={}, **result_of)
    return [model, other]


@pytest.mark.parametrize("seed", range(30))
def test_lasting_is_of_the_rows_that_were_asked(seed: int) -> None:
    """Whatever the rows that were left out, which the model may know much better or worse."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 30))
    size = int(rng.integers(1, n + 1))
    places = np.sort(rng.choice(n, size, replace=False))
    start, retain, model = (rng.uniform(low, high, n) for low, high in ENDS)
    after = {name: rng.uniform(0, 1, size) for name in ("start", "retain", "model")}

    records = [
        *attacked("fine-tuned", start, after["start"], places.tolist()),
        *attacked("retain", retain, after["retain"], places.tolist()),
        *attacked("run", model, after["model"], places.tolist()),
    ]
    (panel,) = Results.of(records, name="").lasting
    (setting,) = panel.settings
    assert panel.column.name == COLUMN
    before = {"start": start[places], "retain": retain[places], "model": model[places]}
    gains = {name: after[name].mean() - before[name].mean() for name in ("model", "retain")}
    removed = before["start"].mean() - before["model"].mean()
    learned = before["start"].mean() - before["retain"].mean()
    (under,) = setting.under
    assert under.gain == pytest.approx(gains["model"])
    assert under.null == pytest.approx(gains["retain"])
    if removed / learned < 0.25:
        assert setting.lasting is None
    else:
        expected = 1 - (gains["model"] - max(0.0, gains["retain"])) / removed
        assert setting.lasting == pytest.approx(expected)
    assert panel.retain_plain == pytest.approx(retain.mean()), "the column before is of all rows"


def test_a_number_that_is_no_mean_over_rows_has_no_score_where_rows_are_left_out() -> None:
    def without_column(result: EpochResult) -> EpochResult:
        return replace(result, metrics={"model_utility": 0.9, "log10_forget_quality": -5.0})

    rng = np.random.default_rng(0)
    records = [
        one
        for kind in ("fine-tuned", "retain", "run")
        for one in attacked(kind, rng.uniform(0, 1, 6), rng.uniform(0, 1, 3), [0, 2, 4])
    ]
    records = [
        replace(
            one,
            epochs=tuple(map(without_column, one.epochs)),
            attacked=tuple(map(without_column, one.attacked)),
        )
        for one in records
    ]
    (panel,) = Results.of(records, name="").lasting
    (setting,) = panel.settings
    assert panel.column.name == "log10_forget_quality"
    assert setting.lasting is None
    assert setting.why_not.startswith("paraphrase may leave rows out, and log₁₀ forget quality")


def test_records_without_observations_have_no_score_where_rows_may_be_left_out() -> None:
    """The lines of a leaderboard have none, so the plain numbers are of all rows only."""
    rng = np.random.default_rng(0)
    after = rng.uniform(0, 1, 3)
    ends = zip(("fine-tuned", "retain", "run"), ENDS, strict=True)
    records = [
        replace(one, evaluations={}, attacked_evaluations={})
        for kind, (low, high) in ends
        for one in attacked(kind, rng.uniform(low, high, 6), after, [0, 2, 4])
    ]
    (panel,) = Results.of(records, name="").lasting
    (setting,) = panel.settings
    assert [under.gain for under in setting.under] == [None]
    assert setting.lasting is None
    *_, baseline = attack_sentences(panel)
    assert baseline.startswith("What the retain model itself gains is not known: ")
    assert setting.why_not.startswith("paraphrase may leave rows out, and ")


def test_greedy_answers_are_measured_also_where_the_benchmark_does_not_report_it() -> None:
    """KnowUndo has no ROUGE of its forget set, beside which samples stand."""
    schema = recorded_schema({"source": "knowundo"}, TOFU.id)
    (of_set, *_) = schema.sets("forget")
    column = f"rouge_{of_set}"
    assert column not in schema.columns
    scores = np.array([0.1, 0.4, 0.7])
    seen = replace(asked(scores, range(3)), rouge_l_recall=scores)
    evaluation = Evaluation(TOFU.id, {of_set: seen})
    plain = table_row("run", "npo", {}, run_id="run", schema=schema)
    under = replace(plain, variant="sampling", metrics=Numbers({f"expected_best_{of_set}": 0.8}))
    measured = yardstick(schema, "exact_memorization", "sampling", [under])
    assert measured is not None
    assert measured.before.name == column
    (before,) = before_rows([plain], [under], lambda _: evaluation)
    assert (before.run_id, before.epoch, before.variant) == ("run", 1, "sampling")
    assert before.metrics[column] == pytest.approx(0.4)
    assert NumbersBefore.of([before])(plain, "sampling") == before.metrics
    assert NumbersBefore.of([])(plain, "sampling") == plain.metrics


def test_numbers_before_are_computed_again_if_an_unreported_metric_or_the_attack_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = recorded_schema({"source": "knowundo"}, TOFU.id)
    (of_set, *_) = schema.sets("forget")
    plain = table_row("run", "npo", {}, run_id="run", schema=schema, key="plain")
    numbers = Numbers({f"expected_best_{of_set}": 0.8})
    under = replace(plain, variant="sampling", metrics=numbers, key="under")

    def key() -> str:
        (before,) = before_rows([plain], [under], lambda _: None)
        return before.key

    keys = [key(), key()]
    assert keys[0] == keys[1]
    monkeypatch.setattr(asked_rows, "_code_of", "changed {}".format)
    keys.append(key())
    monkeypatch.setattr(asked_rows, "asks_all_models_alike", "another attack".__eq__)
    keys.append(key())
    assert len({*keys}) == 3


@pytest.mark.parametrize(
    ("whole", "of", "expected"),
    [
        ([("a", "x"), ("b", "y"), ("c", "z")], [("a", "x"), ("c", "z")], [0, 2]),
        ([("a", "x"), ("a", "x y"), ("b", "z")], [("a", "x"), ("a", "x y")], [0, 1]),
        ([("", "one"), ("", "two words"), ("", "one")], [("", "words")], [1]),
        ([("a", "x"), ("a", "y")], [("a", "z")], None),
        ([("a", "x"), ("a", "x")], [("a", "x")], None),
        ([("", "x"), ("", "y"), ("", "x")], [("", "x"), ("", "y")], [0, 1]),
        ([("", "x"), ("", "y"), ("", "x")], [("", "y"), ("", "x")], [1, 2]),
        ([("a", "x")], [("b", "x")], None),
    ],
)
def test_rows_with_the_same_question_are_told_apart_by_their_answers(
    whole: Sequence[tuple[str, str]],
    of: Sequence[tuple[str, str]],
    expected: Sequence[int] | None,
) -> None:
    def rows(pairs: Sequence[tuple[str, str]]) -> SetEvaluation:
        made = asked(np.full(len(pairs), 0.5), range(len(pairs)), [answer for _, answer in pairs])
        return replace(made, questions=tuple(question for question, _ in pairs))

    places = asked_places(rows(whole), rows(of))
    assert (None if places is None else places.tolist()) == expected
