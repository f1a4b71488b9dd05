"""Scores of General CE-U: from a column of the data, from rewards, by row and by token."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unlearnbench.api.benchmark import Dataset, Question, Split
from unlearnbench.api.method import LossBatch, Part
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import training_rows, with_scores

from ..benchmarks.test_tofu import load, small_tables, write
from .conftest import Toy, assert_same, ce_towards, make_toy, mean, method, unlearning_target

FORGET = ((0.0, 0.25, 1.0, 0.5), (0.9,), (0.1, 0.2, 0.3))
RETAIN = ((1.0, 0.75), (0.5, 1.0, 1.0, 0.0, 0.6), (1.0,))
SAMPLE = ((0.5,), (0.0, 1.0), (0.3,), (0.7, 0.7)) * 2


def with_column(toy: Toy, **scores: Sequence[Sequence[float]]) -> LossBatch:
    """The batch with these scores by part and row."""
    batch = toy.batch()
    parts = dict(batch.parts)
    for part, rows in scores.items():
        flat = torch.tensor([r for row in rows for r in row], dtype=torch.float64)
        name: Part = "forget" if part == "forget" else "retain" if part == "retain" else "sample"
        parts[name] = replace(parts[name], scores=flat)
    return replace(batch, parts=parts)


def terms(toy: Toy, part: Part, scores: Sequence[float]) -> list[Tensor]:
    """−Σ_v a_v log p_v of each token, from the equation."""
    values: list[Tensor] = []
    for (z, y, _), r in zip(toy.tokens(part), scores, strict=True):
        one = torch.zeros_like(z)
        one[y] = 1
        values.append(ce_towards(r * one + (1 - r) * unlearning_target(z, y), z))
    return values


def flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [score for row in rows for score in row]


def test_a_column_of_the_forget_rows(toy: Toy) -> None:
    batch = with_column(toy, forget=FORGET)
    formula = mean([*terms(toy, "forget", flat(FORGET)), *terms(toy, "retain", [0.9] * 8)])
    assert_same(toy, method("general-ce-u", scores="column", retain_score=0.9).loss(batch), formula)


def test_columns_of_both_sides(toy: Toy) -> None:
    batch = with_column(toy, forget=FORGET, retain=RETAIN)
    formula = mean([*terms(toy, "forget", flat(FORGET)), *terms(toy, "retain", flat(RETAIN))])
    made = method("general-ce-u", scores="column", retain_scores="column")
    assert_same(toy, made.loss(batch), formula)


def test_rewards_of_samples(toy: Toy) -> None:
    batch = with_column(toy, sample=SAMPLE)
    formula = mean([*terms(toy, "sample", flat(SAMPLE)), *terms(toy, "retain", [1.0] * 8)])
    assert_same(toy, method("general-ce-u", scores="reward", samples=4).loss(batch), formula)
    assert batch.reported["reward"].item() == pytest.approx(0.5)


def test_scores_by_token_differ_from_scores_by_row() -> None:
    """Three rows with three tokens, but one of them has none."""
    toy = make_toy({"forget": (2, 1, 0), "retain": (1, 1, 1)})
    scores = (0.1, 0.6, 0.9)
    batch = with_column(toy, forget=(scores,))
    formula = mean([*terms(toy, "forget", scores), *terms(toy, "retain", [1.0] * 3)])
    assert_same(toy, method("general-ce-u", scores="column").loss(batch), formula)


def test_a_column_has_one_number_or_one_for_each_token(tmp_path: Path) -> None:
    tables = small_tables()
    for row, score in zip(tables["forget10"], (1, [0, 0.5]), strict=True):
        row["score"] = score
    tables["retain90"] = [{**row, "score": 0.9} for row in tables["retain90"]]
    write(tmp_path, tables)
    split = load(tmp_path).splits[0.1]
    assert [row.score for row in split.forget] == [1.0, (0.0, 0.5)]
    assert isinstance(split.forget[0].score, float)
    assert [row.score for row in split.retain] == [0.9] * 8


def benchmark_of(questions: Sequence[Question]) -> Dataset:
    split = Split(0.1, tuple(questions[:2]), tuple(questions[2:]), {"forget": tuple(questions[:2])})
    return Dataset("tofu", tuple(questions), {0.1: split}, ("No.",))


class TestRows:
    """Scores go with the tokens that they are of."""

    def test_by_row_and_by_token(self, encoder: Encoder, questions: Sequence[Question]) -> None:
        count = encoder.row(questions[1]).scored
        by_token = tuple(i / count for i in range(count))
        scored = [replace(questions[0], score=0.5), replace(questions[1], score=by_token)]
        data = benchmark_of([*scored, *questions[2:]])
        plain = training_rows(data, 0.1, encoder, 1)
        rows = with_scores(plain, data.splits[0.1], encoder, 1, {"forget"})
        assert rows.forget == plain.forget, "the same rows for the start model's predictions"
        assert rows.forget[0].scores == (0.5,) * rows.forget[0].scored
        assert rows.forget[1].scores == by_token[1:], "the first token is not seen"
        assert all(not row.scores for row in rows.retain)
