"""The table of questions: complete, exact, and read with one line of pandas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.metrics import truth_ratios
from unlearnbench.evaluation.profiles import TOFU, TOFU_PAPER, get_profile
from unlearnbench.evaluation.questions import questions_table, write_questions
from unlearnbench.evaluation.result import SETS, Evaluation, SetEvaluation, SetName

COLUMNS = [
    *("set", "index", "question", "reference", "generated"),
    *("answer_loss", "answer_tokens", "base_loss", "base_tokens"),
    *("perturbed_loss", "perturbed_tokens", "truth_ratio", "rouge1_recall", "rougeL_recall"),
]


def one_set(name: SetName, n: int = 3) -> SetEvaluation:
    draws = np.random.default_rng(SETS.index(name))
    k = 5 if name in ("retain", "forget") else 3
    return SetEvaluation(
        questions=tuple(f"{name} {i}: wo? «ä»" for i in range(n)),
        generated=tuple(f"said\n{i}" for i in range(n)),
        references=tuple(f"true {i}" for i in range(n)),
        answer_loss=draws.random(n),
        answer_tokens=draws.integers(1, 9, n),
        base_loss=draws.random(n),
        base_tokens=draws.integers(1, 9, n),
        perturbed_loss=draws.random((n, k)),
        perturbed_tokens=draws.integers(1, 9, (n, k)),
        rouge1_recall=draws.random(n),
        rouge_l_recall=draws.random(n),
    )


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(TOFU.id, {name: one_set(name) for name in SETS})


def test_every_value_is_there(evaluation: Evaluation) -> None:
    rows = questions_table(evaluation)
    assert [(row["set"], row["index"]) for row in rows] == [(n, i) for n in SETS for i in range(3)]
    assert all(list(row) == COLUMNS for row in rows)
    forget = evaluation.sets["forget"]
    row = rows[4]
    assert (row["question"], row["generated"]) == ("forget 1: wo? «ä»", "said\n1")
    assert row["perturbed_loss"] == forget.perturbed_loss[1].tolist()
    assert row["perturbed_tokens"] == forget.perturbed_tokens[1].tolist()
    assert row["truth_ratio"] == truth_ratios(forget, TOFU)[1]
    assert (row["rouge1_recall"], row["rougeL_recall"]) == (
        forget.rouge1_recall[1],
        forget.rouge_l_recall[1],
    )


def test_truth_ratios_follow_the_evaluations_own_profile(evaluation: Evaluation) -> None:
    paper = replace(evaluation, profile=TOFU_PAPER.id)
    wanted = truth_ratios(evaluation.sets["retain"], TOFU_PAPER)
    assert [row["truth_ratio"] for row in questions_table(paper)[:3]] == wanted.tolist()
    assert questions_table(evaluation)[0]["truth_ratio"] != wanted[0]
    shorter = replace(evaluation, profile=get_profile("tofu", rows=3, max_length=90).id)
    assert (
        questions_table(shorter)[0]["truth_ratio"] == questions_table(evaluation)[0]["truth_ratio"]
    )
    with pytest.raises(EvaluationError, match=r"'tofu@00000000' is none of those known here"):
        questions_table(replace(evaluation, profile="tofu@00000000"))


def test_parquet_is_read_with_one_line_of_pandas(evaluation: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "new" / "q.parquet"
    write_questions(evaluation, path)
    frame = pandas.read_parquet(path)
    assert list(frame.columns) == COLUMNS
    for (_, found), row in zip(frame.iterrows(), questions_table(evaluation), strict=True):
        for key, value in row.items():
            told = found[key]
            assert (list(told) if isinstance(value, list) else told) == value, key
    assert [p.name for p in path.parent.iterdir()] == ["q.parquet"]


def test_json_lines_are_read_too(evaluation: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    write_questions(evaluation, path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == questions_table(
        evaluation
    )
    frame = pandas.read_json(path, lines=True, precise_float=True)
    assert frame["answer_loss"].tolist() == [r["answer_loss"] for r in questions_table(evaluation)]


def test_what_is_not_finite_or_not_known(tmp_path: Path) -> None:
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
    write_questions(evaluation, tmp_path / "q.parquet")
    frame = pandas.read_parquet(tmp_path / "q.parquet")
    assert np.isnan(frame["truth_ratio"][0])
    assert frame["generated"].isna().all()


def test_where_it_cannot_be_written(evaluation: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"q\.csv: questions are written as \.parquet or"):
        write_questions(evaluation, tmp_path / "q.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match="cannot write the questions"):
        write_questions(evaluation, tmp_path / "file" / "q.jsonl")
