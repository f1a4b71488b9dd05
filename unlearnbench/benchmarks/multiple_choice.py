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
"""What is scored: the letters of the options, after a list of the options, or their texts."""


class Choice(Columns):
    """A question with its options and the index of the right one: the columns of the hub's sets."""

    question: Words
    choices: Annotated[tuple[Words, ...], Field(min_length=2, max_length=len(ascii_uppercase))]
    answer: Annotated[int, Field(ge=0)]

    def row(
        self, style: Style, opening: str, location: str = "", format_: Format = "text"
    ) -> Question:
        """Return the row as lm-evaluation-harness asks it.

        Source: lm_eval/tasks/mmlu/default, /continuation; lm_eval/api/task.py, `fewshot_context`.

        Args:
            style: What is scored.
            opening: Text in front of the question. In a chat it is the system message.
            location: Place of the row, for messages.
            format_: Whether the question is text or a turn of a chat.
        """
        question = self.question.strip()
        if style == "letters":
            options = tuple(ascii_uppercase[: len(self.choices)])
            lines = [f"{a}. {text}\n" for a, text in zip(options, self.choices, strict=True)]
            prompt = f"{question}\n{''.join(lines)}Answer:"
        else:
            options = self.choices
            prompt = f"Question: {question}\nAnswer:"
        is_chat = format_ == "chat"
        return Question(
            prompt if is_chat else opening + prompt,
            options[self.answer],
            perturbed_answers=options[: self.answer] + options[self.answer + 1 :],
            answer_index=self.answer,
            format=format_,
            system=opening if is_chat else None,
            place=location,
        )


def choices(tables: Tables, table: Table) -> Iterator[PlacedRow[Choice]]:
    """Yield the rows of a table of questions, each with its place.

    Raises:
        DataError: A row is wrong, or there is no such table.
    """
    for location, row in tables.rows(table, Choice):
        if row.answer >= len(row.choices):
            count = len(row.choices)
            raise DataError(f"{location}: column 'answer': {row.answer} of {count} options, from 0")
        yield location, row


def accuracy(name: str, style: Style) -> MetricUse:
    """Return the accuracy that is reported for a set.

    It is `acc` of lm-evaluation-harness for letters, and `acc_norm` for texts, which divides by
    the number of characters.
    """
    per = "option" if style == "letters" else "character"
    return MetricUse("choice-accuracy", (name,), {"per": per})
