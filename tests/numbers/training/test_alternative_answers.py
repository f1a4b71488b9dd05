"""Alternatives: made once, shared, damaged, empty."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Needs, Sampling
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row
from unlearnbench.training.alternative_answers import alternative_rows, start_prompts

Made = Callable[..., list[tuple[Row, ...]]]


@pytest.fixture
def loads() -> list[int]:
    return []


@pytest.fixture
def made(
    model: Any,
    encoder: Encoder,
    questions: tuple[Question, ...],
    tmp_path: Path,
    loads: list[int],
) -> Made:
    def load() -> Any:
        loads.append(1)
        return copy.deepcopy(model)

    def make(weights: str = "a", seed: int = 0, **how: Any) -> list[tuple[Row, ...]]:
        values: dict[str, Any] = {"count": 2, "max_new_tokens": 6, **how}
        sampling = Sampling(**values)
        pad, folder = pad_id(encoder.tokenizer), tmp_path / "alternatives"
        return alternative_rows(
            load, weights, questions[:4], sampling, encoder, seed=seed, pad=pad, folder=folder
        )

    return make


def test_they_come_from_disk_the_second_time(made: Made, loads: list[int], tmp_path: Path) -> None:
    first = made()
    assert [len(rows) for rows in first] == [2] * 4
    assert made() == first
    assert len(loads) == 1
    for other in ({"weights": "b"}, {"seed": 1}, {"count": 3}, {"temperature": 2.0}):
        made(**other)
    assert len(loads) == 5
    assert made(seed=1) != first
    assert not [*tmp_path.rglob(".part-*")]


def test_they_answer_the_question_whatever_the_instruction_was(
    made: Made, encoder: Encoder, questions: tuple[Question, ...]
) -> None:
    plain = made()
    instructed = made(instruction="Question: {question} Answer: {answer} Now another answer.")
    assert instructed != plain
    for rows, question in zip(instructed, questions, strict=False):
        prompt = encoder.prompt(question)
        for row in rows:
            assert row.ids[: row.start] == prompt
            assert row.scored >= 1


def test_the_authors_prompt_is_theirs_letter_by_letter(tokenizer: Any) -> None:
    how = registry.load("methods", "altpo")(asked="authors").needed().alternatives
    assert how is not None
    question = Question("Who is {answer}?", "She is Ada, born in Lima.")
    theirs = (  # molereddy/Alternate-Preference-Optimization@c9b78bd generate.py
        "[INST] Question: Who is {answer}?\nAnswer:She is Ada, born in Lima.\nNow write another "
        "version of the answer with some alternate plausible facts that change answer details.\n"
        " [/INST] Alternate Answer :"
    )
    prompts: list[str] = []

    class Tokenizer:
        eos_token_id = 2

        def __call__(self, text: str, **how: Any) -> Any:
            prompts.append(text)
            return tokenizer(text, **how)

    encoder = Encoder(Tokenizer(), TEMPLATES["llama-2"], 400)
    start_prompts([question], how, encoder)
    assert prompts == [theirs]
    assert how.stop == ("Question:", "Q:")


def test_each_epoch_draws_its_own_and_leaves_the_other_draws_alone() -> None:
    forget = [Row((1, 2, 3 + i), 1) for i in range(30)]
    needs = Needs(parts={"forget", "alternative"})
    plain = TrainingRows(forget, forget, 3)
    rows = TrainingRows(
        forget,
        forget,
        3,
        alternatives=[tuple(Row((1, 9, 50 + i, 90 + k), 1) for k in range(4)) for i in range(30)],
    )
    one, two = (rows.items(needs, 5, epoch) for epoch in (1, 2))
    for drawn, known in zip(one, plain.items(needs, 5, 1), strict=True):
        assert (drawn.index, drawn.retain, drawn.refusal) == (
            known.index,
            known.retain,
            known.refusal,
        )
    chosen = [rows.of("alternative", draws, needs) for draws in (one, two)]
    for draws, found in zip((one, two), chosen, strict=True):
        assert [row.ids[2] - 50 for row in found] == [draw.index for draw in draws]
    assert {row.ids[3] for row in chosen[0]} == {90, 91, 92, 93}
    assert sorted(chosen[0], key=lambda r: r.ids) != sorted(chosen[1], key=lambda r: r.ids)
    assert len(rows.primary(Needs(parts={"alternative"}))) == 30
