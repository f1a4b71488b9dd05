"""Multiple choice as the tasks of lm-evaluation-harness 0.4.13 write it."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_uppercase
from typing import Annotated, Literal

from pydantic import Field

from unlearnbench.api.benchmark import Format, MetricUse, Question
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.published_tables import Columns, PlacedRow, Table, Tables, Words

Style = Literal["letters", "texts"]
"""What is scored: the options' letters, behind a list of them; or their texts."""


class Choice(Columns):
    """A question with its options and the index of the right one: the columns of the hub's sets."""

    question: Words
    choices: Annotated[tuple[Words, ...], Field(min_length=2, max_length=len(ascii_uppercase))]
    answer: Annotated[int, Field(ge=0)]

    def row(
        self, style: Style, opening: str, location: str = "", format_: Format = "text"
    ) -> Question:
        """The row behind `opening`, which is the system message of a chat, as in that harness.

        Source: lm_eval/tasks/mmlu/default, /continuation; lm_eval/api/task.py, `fewshot_context`.
        """
        letters = ascii_uppercase[: len(self.choices)]
        if style == "letters":
            listed = [f"{a}. {text}\n" for a, text in zip(letters, self.choices, strict=True)]
            asked, options = f"{self.question.strip()}\n{''.join(listed)}", tuple(letters)
        else:
            asked, options = f"Question: {self.question.strip()}\n", self.choices
        i = self.answer
        chat = format_ == "chat"
        return Question(
            f"{'' if chat else opening}{asked}Answer:",
            options[i],
            perturbed_answers=options[:i] + options[i + 1 :],
            answer_index=i,
            format=format_,
            system=opening if chat else None,
            place=location,
        )


def choices(tables: Tables, table: Table) -> Iterator[PlacedRow[Choice]]:
    """Yield the rows of a table of questions, each with its place.

    Raises:
        DataError: If a row is wrong, or there is no such table.
    """
    for location, row in tables.rows(table, Choice):
        if row.answer >= len(row.choices):
            count = len(row.choices)
            raise DataError(f"{location}: column 'answer': {row.answer} of {count} options, from 0")
        yield location, row


def accuracy(name: str, style: Style) -> MetricUse:
    """The metric that is reported of a set: `acc` of letters, `acc_norm` of texts."""
    per = "option" if style == "letters" else "character"
    return MetricUse("choice-accuracy", (name,), {"per": per})
