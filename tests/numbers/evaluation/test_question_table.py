"""The table of questions: complete, exact, and read with one line of pandas."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, AnswerTokens, Evaluation, SetEvaluation, SetName
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.evaluation.question_table import questions_table, write_questions
from unlearnbench.evaluation.summary import plan_of, truth_ratios

COLUMNS = [
    *("set", "index", "question", "reference", "generated"),
    *("answer_loss", "answer_tokens", "base_loss", "base_tokens"),
    *("perturbed_loss", "perturbed_tokens", "truth_ratio", "rouge1_recall", "rougeL_recall"),
]
METRICS = {"rouge", "probability", "truth_ratio_value", "paraphrased_probability"}
"""Some of those that such an evaluation has."""


def one_set(name: SetName) -> SetEvaluation:
    words = tuple(f"{name} {i}: wo? «ä»\n" for i in range(3))
    plain = replace(made_up_set(n=3, seed=SETS.index(name)), token_columns=None, generated=words)
    return replace(plain, grad_norm=None, start_loss=None, samples=None)


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(TOFU.id, {name: one_set(name) for name in SETS})


def test_every_value_is_there(evaluation: Evaluation) -> None:
    rows = questions_table(evaluation)
    assert [(row["set"], row["index"]) for row in rows] == [(n, i) for n in SETS for i in range(3)]
    assert all(list(row)[: len(COLUMNS)] == COLUMNS for row in rows)
    assert all({*row} >= METRICS and [*row] == [*rows[0]] for row in rows)
    forget = evaluation.sets["forget"]
    row = rows[4]
    assert (row["question"], row["generated"]) == ("question 1", "forget 1: wo? «ä»\n")
    assert row["perturbed_loss"] == forget.perturbed_loss[1].tolist()
    assert row["perturbed_tokens"] == forget.perturbed_tokens[1].tolist()
    assert row["truth_ratio"] == truth_ratios(forget, TOFU)[1]
    assert (row["rouge1_recall"], row["rougeL_recall"]) == (
        forget.rouge1_recall[1],
        forget.rouge_l_recall[1],
    )


def test_metrics_by_question_are_those_whose_mean_is_in_the_summary(
    evaluation: Evaluation,
) -> None:
    drawn = np.random.default_rng(7)
    tokens = AnswerTokens(
        lengths=np.array([4, 2, 3]),
        ended=np.full(3, True),
        loss=drawn.random(9).astype(np.float32),
        hit=drawn.random(9) > 0.3,
        tied=np.zeros(9, dtype=bool),
    )
    forget = replace(evaluation.sets["forget"], token_columns=tokens)
    sets = {**evaluation.sets, "forget": forget, "holdout": replace(forget, questions=())}
    rows = questions_table(replace(evaluation, sets=sets))
    values = plan_of(TOFU).values(sets)
    for name in ("exact_memorization", "extraction_strength", "probability"):
        of_set = [row[name] for row in rows if row["set"] == "forget"]
        assert np.mean(of_set) == pytest.approx(values[f"{name}_forget"])
    assert {row["set"] for row in rows if row["mia_loss"] is not None} == {"forget", "holdout"}
    assert [row["exact_memorization"] for row in rows if row["set"] == "real_authors"] == [None] * 3
    tokens_of_none = np.empty((3, 0), dtype=np.int64)
    unperturbed = replace(forget, perturbed_loss=np.empty((3, 0)), perturbed_tokens=tokens_of_none)
    rows = questions_table(replace(evaluation, sets={"forget": unperturbed}))
    assert np.isnan([row["truth_ratio"] for row in rows]).all()


def test_an_attack_relative_to_the_retain_model_has_its_own_scores(evaluation: Evaluation) -> None:
    """As in the attack's AUC: the model's loss less the retain model's."""
    model = replace(evaluation, sets={**evaluation.sets, "holdout": one_set("forget")})
    losses = {name: seen.answer_loss * 2 + 1 for name, seen in model.sets.items()}
    sets = {name: replace(seen, answer_loss=losses[name]) for name, seen in model.sets.items()}
    rows = questions_table(model, retain=replace(model, sets=sets))
    of_forget = [row["mia_reference"] for row in rows if row["set"] == "forget"]
    expected = model.sets["forget"].answer_loss - losses["forget"]
    assert of_forget == expected.tolist()
    assert "mia_reference" not in questions_table(model)[0], "without a retain model"


def test_values_that_are_not_finite_or_unknown(tmp_path: Path) -> None:
    broken = replace(
        one_set("forget"),
        questions=(),
        generated=(),
        references=(),
        base_loss=np.array([np.nan, 1.0, np.inf]),
    )
    evaluation = Evaluation(TOFU.id, {"forget": broken})
    write_questions(evaluation, tmp_path / "q.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert [row["base_loss"] for row in rows] == [None, 1.0, None]
    assert rows[0]["truth_ratio"] is None
    assert rows[0]["question"] is None
