"""Your own questions and answers, from tables.

    data: {source: questions, forget: forget.jsonl, retain: retain.jsonl}

Columns are named in the configuration, or found by their usual names (`own_columns.py`). With a
retain model, a method is judged by how near it comes to that model. Without one, it is judged by
how much it removes of what the start model has memorized.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from unlearnbench.api.benchmark import MetricUse, Question
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import DataError
from unlearnbench.base.row_texts import row_text
from unlearnbench.base.tables import TableRow
from unlearnbench.benchmarks.conversations import conversation
from unlearnbench.benchmarks.facts import facts
from unlearnbench.benchmarks.own_columns import answer_columns, named_column
from unlearnbench.benchmarks.own_rows import OwnRows, OwnSplit, Part
from unlearnbench.benchmarks.own_tables import Table, is_missing, kind_of, subject_of, words_of
from unlearnbench.benchmarks.read_tables import ReadTable

_OPTIONAL = ("paraphrase", "paraphrased_question", "wrong_answers", "subject", "score")
"""Settings of columns that tables of retain and holdout rows may lack."""


class Questions(OwnRows):
    """Your own questions with answers: files, folders or the hub, one table or several."""

    roles: ClassVar[Mapping[str, Role]] = {
        "retain": "retain",
        "utility": "general",
        "forget": "forget",
        "holdout": "holdout",
    }

    source: str = "questions"
    question: str | None = Field(
        default=None, description="column of questions; default: `question`, `prompt`, …"
    )
    answer: str | None = Field(
        default=None, description="column of answers; default: `answer`, `completion`, …"
    )
    messages: str | None = Field(
        default=None,
        description="column of conversations, instead of columns of questions and answers; the "
        "last assistant turn is the answer, and earlier turns are its context; "
        "default: `messages`, `conversations`, …",
    )
    paraphrase: str | None = Field(
        default=None, description="column of the answer in other words, at least for forget rows"
    )
    paraphrased_question: str | None = Field(
        default=None, description="column of the question in other words"
    )
    wrong_answers: str | None = Field(
        default=None,
        description="column of a list of wrong answers, at least for forget rows; truth ratio "
        "and Forget Quality need them",
    )
    score: str | None = Field(
        default=None,
        description="column of a number from 0 (unlearn) to 1 (learn), or of a number for each "
        "token, for methods that read scores",
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.messages is not None and (self.question is not None or self.answer is not None):
            raise ValueError("messages stands for question and answer together; leave those out")
        setting_of: dict[str, str] = {}
        for setting in ("question", "answer", "messages", *_OPTIONAL):
            column = getattr(self, setting)
            if column is None or setting == "subject":
                # The subject may be the column of questions or answers.
                continue
            if column in setting_of:
                raise ValueError(
                    f"{setting}: {column!r} is the column of {setting_of[column]} as well; name "
                    "another one"
                )
            setting_of[column] = setting
        return self

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return how much is left of the forget rows, and what is kept.

        Truth ratio and Forget Quality are added if rows have wrong answers.
        """
        answered = ("retain", "forget")
        texts: tuple[str, ...] = answered
        if self.utility is not None and not self.uses_facts:
            texts = ("retain", "utility", "forget")
        uses = [*self.shared_metrics()]
        ratio = {"mean": profile.perturbed_mean, "epsilon": profile.truth_ratio_epsilon}
        if self.wrong_answers is not None:
            uses.append(MetricUse("forget-quality", settings=ratio))
        uses += [
            MetricUse("extraction-strength", answered),
            MetricUse("exact-memorization", answered),
            MetricUse("rouge", texts),
            MetricUse("probability", texts),
        ]
        if self.uses_facts:
            options = {"epsilon": profile.options_epsilon}
            uses += [
                MetricUse("option-probability", ("utility",), options, name="probability"),
                MetricUse("choice-accuracy", ("utility",)),
            ]
        if self.wrong_answers is not None:
            uses.append(MetricUse("truth-ratio", ("forget",), ratio | {"form": "closeness"}))
        return tuple(uses)

    def evaluation_sets(self, split: OwnSplit) -> Mapping[str, tuple[Question, ...]]:
        """Return the rows as they are."""
        return {
            "retain": split.evaluated_retain,
            "forget": split.forget,
            "holdout": split.holdout,
        }

    def evaluated_facts(self) -> tuple[Question, ...]:
        """Return the embedded facts as rows of a multiple choice."""
        return tuple(
            replace(fact, answer_index=i % (1 + len(fact.perturbed_answers)))
            for i, fact in enumerate(facts("world_facts"))
        )

    def trained_facts(self) -> tuple[Question, ...]:
        """Return the embedded facts as questions with answers."""
        return facts("world_facts")

    def evaluated_utility(self, rows: Sequence[Question]) -> tuple[Question, ...]:
        """Return the rows as they are."""
        return tuple(rows)

    def columns_as_text(self, table: Table) -> Sequence[str]:
        """Return the columns of questions, answers and their variants."""
        is_own = table.setting != "data.utility"
        columns = self._columns(table, is_required=False, is_own=is_own)
        settings = ("question", "answer", "paraphrase", "paraphrased_question", "subject")
        return [columns[setting] for setting in settings if setting in columns]

    def read_rows(
        self,
        table: Table,
        part: Part,
        rows: Iterable[TableRow] | None = None,
    ) -> ReadTable:
        """Make questions of a table."""
        columns = self._columns(table, is_required=part == "forget", is_own=part != "utility")
        read = table.read(self.columns_as_text(table)) if rows is None else rows
        questions = tuple(_row(row, columns) for row in read)
        shown = ", ".join(f"{setting}: {column}" for setting, column in columns.items())
        return ReadTable(table.label, questions, f"with the columns {shown}")

    def _columns(self, table: Table, *, is_required: bool, is_own: bool = True) -> dict[str, str]:
        """Return the columns of a table by setting.

        Args:
            table: The table.
            is_required: Whether the table must have all columns that are named.
            is_own: Whether the names of the configuration are about this table.
        """
        names = {setting: getattr(self, setting) for setting in ("question", "answer", "messages")}
        if not is_own:
            # Utility rows are often of a published data set, whose columns have other names.
            names = {
                setting: name if name in table.columns else None for setting, name in names.items()
            }
        columns = answer_columns(names, table.columns, table.label)
        for setting in _OPTIONAL:
            name = getattr(self, setting)
            if name is None or not (is_required or name in table.columns):
                continue
            columns[setting] = named_column(setting, name, table.columns, table.label)
        return columns


def _row(row: TableRow, columns: Mapping[str, str]) -> Question:
    """Make a row.

    Args:
        row: Row of a table.
        columns: Columns by setting, see `Questions._columns`.

    Raises:
        DataError: A value has another form.
    """
    if "messages" in columns:
        column = columns["messages"]
        chat = conversation(row.values.get(column), row.place, column)
        question = Question(
            chat.question, chat.answer, examples=chat.examples, system=chat.system, place=row.place
        )
    else:
        question = Question(
            words_of(row, columns["question"]), words_of(row, columns["answer"]), place=row.place
        )
    optional: dict[str, Any] = {}
    if "paraphrase" in columns:
        optional["paraphrased_answer"] = words_of(row, columns["paraphrase"])
    if "paraphrased_question" in columns:
        optional["paraphrased_question"] = words_of(row, columns["paraphrased_question"])
    if "wrong_answers" in columns:
        optional["perturbed_answers"] = _wrong_answers(row, columns["wrong_answers"])
    if "subject" in columns:
        optional["subject"] = subject_of(row, columns["subject"])
    if "score" in columns:
        optional["score"] = _score(row, columns["score"])
    return replace(question, **optional) if optional else question


def _from_text(value: Any) -> Any:
    """Return the list or number that a cell of CSV has as text; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return parsed if isinstance(parsed, list | int | float) else value


def _wrong_answers(row: TableRow, column: str) -> tuple[str, ...]:
    """Return the wrong answers of a cell: a list, a list as text, or one answer.

    Raises:
        DataError: The cell has something else, or an answer is blank.
    """
    value = row.values.get(column)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _from_text(value)
    answers: Any = (value,) if isinstance(value, str) else value
    is_list = isinstance(answers, list | tuple) and bool(answers)
    if is_missing(value) or not is_list:
        found = "nothing" if is_missing(value) else kind_of(value)
        raise DataError(
            f"{row.place}: column {column!r} has {found}; it must be a list of wrong answers, or "
            "one as a text"
        )
    for answer in answers:
        if not isinstance(answer, str) or not answer.strip():
            found = "a blank text" if isinstance(answer, str) else kind_of(answer)
            raise DataError(f"{row.place}: column {column!r} has {found} among the wrong answers")
    return tuple(answers)


def _score(row: TableRow, column: str) -> float | tuple[float, ...] | None:
    """Return the score of a row, or a score for each token; None if the cell is empty.

    Raises:
        DataError: The cell has something else.
    """
    value = _from_text(row.values.get(column))
    if is_missing(value):
        return None
    numbers = value if isinstance(value, list | tuple) else (value,)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
            found = f"the text {row_text(number)}" if isinstance(number, str) else kind_of(number)
            raise DataError(
                f"{row.place}: column {column!r} has {found}; a score is a number from 0 (unlearn) "
                "to 1 (learn), or a list with one for each token"
            )
    if not numbers:
        raise DataError(f"{row.place}: column {column!r} is an empty list; give a score, or none")
    if isinstance(value, list | tuple):
        return tuple(float(number) for number in numbers)
    return float(numbers[0])
