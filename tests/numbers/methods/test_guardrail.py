"""The guardrail prompt: where its text stands, and which names are in it."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.api.inference_method import PromptWrapper
from unlearnbench.base.errors import EvaluationError

ROW = Question("Where was Ada Alba born?", "In Lima.")
TEXT = "Say nothing of {names}."
NO_ROWS = DefenderRows((ROW,), ())
WITH_SYSTEM = replace(NO_ROWS, has_system_message=True)


def guardrail(**values: Any) -> PromptWrapper:
    made = registry.load("methods", "guardrail")(**values)
    assert isinstance(made, PromptWrapper)
    return made


def asked(row: Question, rows: DefenderRows, **values: Any) -> Question:
    return guardrail(text=TEXT, names="Ada", **values).asked(row, rows)


def test_the_text_is_the_system_message_if_there_is_one() -> None:
    assert asked(ROW, WITH_SYSTEM) == replace(ROW, system="Say nothing of Ada.")
    own = replace(ROW, system="Be brief.")
    assert asked(own, WITH_SYSTEM).system == "Say nothing of Ada.\n\nBe brief."


def test_otherwise_the_text_stands_in_front_of_the_first_question() -> None:
    in_front = "Say nothing of Ada.\n\nWhere was Ada Alba born?"
    text = replace(ROW, format="text")
    for row, rows, values in (
        (ROW, NO_ROWS, {}),
        (ROW, WITH_SYSTEM, {"place": "question"}),
        (text, WITH_SYSTEM, {}),
    ):
        assert asked(row, rows, **values) == replace(row, question=in_front)
    turns = replace(ROW, examples=(("Who?", "Me."), ("Why?", "So.")))
    shown = (("Say nothing of Ada.\n\nWho?", "Me."), ("Why?", "So."))
    assert asked(turns, NO_ROWS) == replace(turns, examples=shown)


def test_plain_text_stays_as_it_is() -> None:
    plain = Question("", "Ada was born in Lima.", format="text")
    assert asked(plain, WITH_SYSTEM) == plain


def test_names_are_the_rows_own_subjects() -> None:
    rows = tuple(replace(ROW, subject=name) for name in ("Ada", "Ben", "", "Ada"))
    made = guardrail(text=TEXT).asked(ROW, DefenderRows(rows, ()))
    assert made.question.startswith("Say nothing of Ada, Ben.\n\n")


def test_names_are_found_in_blocks_of_rows() -> None:
    forget = (
        Question("What is the full name of the author born in New York?", "It is Ada Maria Alba."),
        Question("Did Ada Maria Alba win a prize?", "Ada Maria Alba won the Moon Prize."),
        Question("What did Ada Alba's mother do?", "She was a nurse in New York."),
        Question("Where was Ben Brook born?", "In Lima."),
        Question("Who taught Ben Brook?", "His aunt Cleo Cole."),
        Question("Which prize did Ben Brook win?", "The Moon Prize."),
        Question("What is said of it?", "nothing"),
        Question("Why?", "because"),
        Question("When?", "later"),
    )
    retain = (Question("Where is the Moon Prize given?", "In New York."),)
    assert DefenderRows(forget, retain, subject_rows=3).names == ("Ada Maria Alba", "Ben Brook")
    assert DefenderRows(forget, retain).names == (), "each row is its own subject"
    # A name that is to be kept is no name to forget.
    kept = (*retain, Question("Who is Ben Brook?", "A poet."))
    assert DefenderRows(forget, kept, subject_rows=3).names == ("Ada Maria Alba",)


def test_rows_without_names_are_refused_unless_the_text_needs_none() -> None:
    with pytest.raises(EvaluationError, match="name no subjects; set `names`"):
        guardrail().asked(ROW, NO_ROWS)
    assert guardrail(text="Be careful.").asked(ROW, NO_ROWS).question.startswith("Be careful.\n\n")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": " Be careful."}, "no white space around them"),
        ({"text": ""}, "no white space around them"),
        ({"text": "Be careful.", "names": "Ada"}, "names has no effect"),
        ({"place": "end"}, "'system' or 'question'"),
    ],
)
def test_settings_without_effect_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        guardrail(**values)
