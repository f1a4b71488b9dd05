"""Epochs cover all rows, in an order from the seed alone."""

import copy
from typing import Any

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import draw_epoch, prompted_rows
from unlearnbench.models.templates import TEMPLATES


def test_epochs_cover_the_rows_and_repeat_from_the_seed() -> None:
    items = draw_epoch(3, 1, 10, 4, 6)
    assert sorted(item.index for item in items) == list(range(10))
    partners = [item.retain for item in items]
    assert sorted(partners[:4]) == sorted(partners[4:8]) == [0, 1, 2, 3]
    assert items == draw_epoch(3, 1, 10, 4, 6)
    assert items != draw_epoch(3, 2, 10, 4, 6)
    assert {item.retain for item in draw_epoch(0, 1, 5, 0, 0)} == {0}


@pytest.mark.parametrize("skipped", [0, 2])
def test_rows_behind_another_prompt_end_as_they_did(
    tokenizer: Any, questions: tuple[Question, ...], skipped: int
) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    rows = [encoder.row(question).without_first(skipped) for question in questions]
    behind = prompted_rows(rows, questions, "A novice answers. {question}", encoder)
    for old, new, question in zip(rows, behind, questions, strict=True):
        assert new.ids[new.start :] == old.ids[old.start :]
        asked = tokenizer.decode(new.ids[: new.start - skipped])
        assert asked.endswith(f"A novice answers. {question.question}\nAnswer:")


def test_a_prompt_with_masked_eos_is_replaced_whole(
    tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    chat = copy.deepcopy(tokenizer)
    chat.pad_token = None
    chat.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}Answer:{% endif %}"
    )
    encoder = Encoder(chat, resolve_template("chat", chat), 200, eos_as_padding=True)
    row = encoder.row(questions[0])
    assert row.masked
    (behind,) = prompted_rows([row], questions[:1], "A novice: {question}", encoder)
    asked = tokenizer.decode(behind.ids[: behind.start])
    assert asked.count("Answer:") == 1
    assert behind.ids[behind.start :] == row.ids[row.start :]
