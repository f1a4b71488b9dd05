"""In-context unlearning: which rows are shown, with which answers, and in which order."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.api.inference_method import PromptWrapper

PLACES = ("Lima", "Quito", "Oslo", "Cairo", "Perth", "Delhi", "Tunis", "Accra")
NAMES = ("Ada Alba", "Ben Brook", "Cleo Cole", "Dan Drake", "Eve Eden", "Fay Flint", "Gus Gale")


def rows_about(names: tuple[str, ...]) -> tuple[Question, ...]:
    rows: list[Question] = []
    for name in names:
        place = PLACES[NAMES.index(name)]
        rows.append(Question(f"Where was {name} born?", f"{name} was born in {place}."))
        rows.append(Question(f"Which prize did {name} win?", f"{name} won the {place} Prize."))
    return tuple(rows)


FORGET, RETAIN = rows_about(NAMES[:3]), rows_about(NAMES[3:])
REFUSALS = ("I don't know.", "I have no idea.", "No idea.")
ROWS = DefenderRows(FORGET, RETAIN, REFUSALS, subject_rows=2, seed=3)


def icul(**values: Any) -> PromptWrapper:
    made = registry.load("methods", "icul")(**values)
    assert isinstance(made, PromptWrapper)
    return made


def shown(row: Question, rows: DefenderRows = ROWS, **values: Any) -> list[tuple[str, str]]:
    return list(icul(**values).asked(row, rows).examples)


def test_a_forget_question_is_shown_first_with_the_answer_to_the_most_alike_retain_question() -> (
    None
):
    pairs = shown(FORGET[2], forget_rows=1, retain_rows=2)
    question, wrong = pairs[0]
    assert question == "Where was Ben Brook born?"
    assert wrong in {row.answer for row in RETAIN if row.question.startswith("Where")}
    assert len(pairs) == 3
    assert set(pairs[1:]) <= {(row.question, row.answer) for row in RETAIN}


@pytest.mark.parametrize("row", [*FORGET, *RETAIN])
@pytest.mark.parametrize("wrong", ["retain", "refusal"])
def test_no_answer_that_is_asked_for_is_in_the_prompt(row: Question, wrong: str) -> None:
    for choose in ("nearest", "random", "first"):
        pairs = shown(row, choose=choose, wrong=wrong)
        asked_for = [answer for question, answer in pairs if question == row.question]
        assert row.answer not in asked_for
        if row in FORGET:
            assert row.answer not in [answer for _, answer in pairs]


def test_all_other_parts_of_the_row_stay() -> None:
    row = replace(FORGET[0], examples=(("Who?", "Me."),), system="Be brief.", prefix="Well")
    asked = icul().asked(row, ROWS)
    assert replace(asked, examples=row.examples) == row
    assert asked.examples[-1] == ("Who?", "Me."), "the prompt's own turns come last"
    assert asked.scored_answers == row.scored_answers


def test_numbers_of_rows_are_those_of_the_settings() -> None:
    for forget, retain in ((1, 0), (2, 3), (6, 8), (100, 100)):
        pairs = shown(FORGET[0], forget_rows=forget, retain_rows=retain)
        questions = [question for question, _ in pairs]
        of_forget = [question for question in questions if question in {r.question for r in FORGET}]
        assert len(of_forget) == min(forget, len(FORGET))
        assert len(pairs) - len(of_forget) == min(retain, len(RETAIN))
        assert questions[: len(of_forget)] == of_forget, "forget rows come first"
        assert len(set(questions)) == len(questions)


def test_the_retain_row_that_is_asked_is_not_answered() -> None:
    pairs = shown(RETAIN[0], retain_rows=100)
    assert RETAIN[0].question not in [question for question, _ in pairs]
    assert len(pairs) == 5 + len(RETAIN) - 1


def test_draws_depend_on_the_seed_and_on_the_question_only() -> None:
    def drawn(seed: int, row: Question) -> list[tuple[str, str]]:
        return shown(row, replace(ROWS, seed=seed), choose="random", forget_rows=3)

    assert drawn(3, FORGET[0]) == drawn(3, FORGET[0])
    assert drawn(3, FORGET[0]) == drawn(3, replace(FORGET[0], answer="Another one."))
    assert any(drawn(3, FORGET[0]) != drawn(seed, FORGET[0]) for seed in range(4, 9))
    assert any(drawn(3, FORGET[0]) != drawn(3, row) for row in FORGET[1:])


def test_a_question_of_an_earlier_turn_is_near_too() -> None:
    """As in the attacks `second-turn` and `in-context`."""
    row = Question("Are you sure?", FORGET[4].answer, examples=((FORGET[4].question, "Yes."),))
    assert shown(row, forget_rows=1)[0][0] == FORGET[4].question


def test_wrong_answers_of_each_kind() -> None:
    of_next = {row.question: other.answer for row, other in pairwise(FORGET)}
    of_next[FORGET[-1].question] = FORGET[0].answer
    pairs = shown(FORGET[0], forget_rows=6, retain_rows=0, wrong="forget")
    assert dict(pairs) == of_next
    pairs = shown(FORGET[0], forget_rows=6, retain_rows=0, wrong="refusal")
    assert {answer for _, answer in pairs} <= set(REFUSALS)
    assert len({answer for _, answer in pairs}) > 1, "drawn for each row"


def test_a_row_without_another_answer_is_left_out() -> None:
    same = tuple(replace(row, answer="Yes!") for row in FORGET[:2])
    rows = DefenderRows(same, (Question("Is it so?", "yes"),))
    for wrong in ("retain", "forget", "refusal"):
        assert shown(same[0], rows, wrong=wrong) == [("Is it so?", "yes")]


def test_an_option_is_replaced_by_another_option() -> None:
    row = Question("Where?", "Lima", perturbed_answers=("Oslo", "Rome"), answer_index=1)
    text = replace(row, question="Where? Answer:", format="text")
    for one, wrong in ((row, {"Oslo", "Rome"}), (text, {" Oslo", " Rome"})):
        ((question, answer),) = shown(one, DefenderRows((one,), ()))
        assert (question, answer in wrong) == (one.question, True)


def test_only_questions_in_the_same_format_are_shown() -> None:
    text = Question("Ada was born in", " Lima.", format="text")
    plain = Question("", "Ada was born in Lima.", format="text")
    rows = DefenderRows((*FORGET, text, plain), (*RETAIN, plain, replace(text, answer=" Rome.")))
    assert shown(text, rows, show_asked=True) == [(text.question, " Rome.")]
    assert icul().asked(plain, rows) == plain, "plain text has no question"
    assert all(question not in ("", text.question) for question, _ in shown(FORGET[0], rows))
