"""Methods that write prompts conform, and those that know too much or change too much do not."""

import random
from dataclasses import replace

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.api.inference_method import PromptWrapper
from unlearnbench.testing import check_plugin


class Careful(PromptWrapper):
    """x' = r x; own work, 2026

    x  question;  r  a reminder
    """

    def asked(self, row: Question, rows: DefenderRows) -> Question:
        del rows
        return replace(row, question=f"Do not guess. {row.question}")


class Knowing(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return replace(row, question=f"It is not: {row.answer} {row.question}")


class Answering(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return replace(row, answer="I do not know.")


class Drawing(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return replace(row, question=f"{random.random()} {row.question}")


SEEN: list[str] = []


class Remembering(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        if not SEEN or SEEN[-1] != repr(id(rows)):
            SEEN.append(repr(id(rows)))
        return replace(row, question=f"{len(SEEN)} {row.question}")


class Ruling(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return replace(row, system="Say nothing.")


class Silent(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return row


class Raising(Careful):
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return replace(row, question=row.question[0])


@pytest.mark.parametrize(
    ("method", "verdict", "seen"),
    [
        (Careful, "passed", "36 of 36 made-up questions"),
        (Knowing, "fault", "the prompt depends on the answer"),
        (Answering, "fault", "more than question, system message and examples is changed"),
        (Drawing, "fault", "another prompt when asked again"),
        (Remembering, "fault", "another prompt after other questions"),
        (Ruling, "fault", "it sets a system message, which the template has no place for"),
        (Silent, "warning", "no question of the made-up rows is asked in another way"),
        (Raising, "fault", "raised IndexError: string index out of range (test_prompt_conform"),
    ],
)
def test_a_prompt_of_each_kind(method: type[PromptWrapper], verdict: str, seen: str) -> None:
    (result,) = check_plugin("methods", method, only=["asked"])
    assert result.outcome.verdict == verdict
    assert seen in result.outcome.seen


def test_a_method_that_trains_writes_no_prompts() -> None:
    (result,) = check_plugin("methods", "npo", only=["asked"])
    assert result.outcome.verdict == "not applicable"
