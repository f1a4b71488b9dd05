"""Columns of a table of the user's own: named in the configuration, or found by their usual names.

A table has questions and answers in two columns, conversations (chat) in one column, or texts in
one column. `configs new` and the benchmarks `questions` and `texts` find columns by the same rules,
so that a written configuration names the columns that would have been found without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from unlearnbench.base.errors import DataError, did_you_mean
from unlearnbench.base.row_texts import row_text
from unlearnbench.base.tables import header_hint

USUAL_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "question": ("question", "prompt", "instruction", "input", "query", "problem"),
    "answer": ("answer", "completion", "output", "response", "target", "reply"),
    "messages": ("messages", "conversations", "conversation", "chat", "dialogue", "dialog"),
    "text": ("text", "body", "content", "passage", "document", "article", "story"),
    "paraphrase": ("paraphrase", "paraphrased_answer"),
    "paraphrased_question": ("paraphrased_question",),
    "wrong_answers": ("wrong_answers", "perturbed_answer", "perturbed_answers", "distractors"),
    "subject": ("subject", "topic", "author", "entity"),
    "score": ("score",),
}
"""Usual names of a column, in small letters, by the setting that can name the column.

For optional columns (`paraphrase` and those after it) the names are only suggestions of
`configs new`. Such a column is read only if the configuration names it.
"""


def named_column(setting: str, name: str, columns: Sequence[str], place: str) -> str:
    """Return the column that a setting names.

    Args:
        setting: Name of the setting, such as `answer`.
        name: The column.
        columns: All columns of the table.
        place: The table, for messages.

    Raises:
        DataError: If the table does not have it.
    """
    if name in columns:
        return name
    near = did_you_mean(name, columns, cutoff=0.6)
    raise DataError(
        f"data.{setting}: {place} has no column {name!r}{near or ';'} its columns are "
        f"{', '.join(columns)}"
    )


def usual_columns(setting: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that have one of a setting's usual names, in any case."""
    usual = USUAL_NAMES[setting]
    return tuple(column for column in columns if column.strip().lower() in usual)


def found_column(setting: str, columns: Sequence[str], place: str) -> str | None:
    """Return the only column with one of a setting's usual names; None if there is none.

    Raises:
        DataError: If there are several.
    """
    found = usual_columns(setting, columns)
    if len(found) > 1:
        raise DataError(
            f"{place} has several columns that may be the {setting}: {', '.join(found)}; name one "
            f"of them in data.{setting} (all columns: {', '.join(columns)})"
        )
    return found[0] if found else None


def answer_columns(
    names: Mapping[str, str | None], columns: Sequence[str], place: str
) -> dict[str, str]:
    """Return the columns of questions and answers, or the column of conversations.

    Args:
        names: Columns that the configuration names, by setting: `question`, `answer`, `messages`.
        columns: All columns of the table.
        place: The table, for messages.

    Returns:
        The columns by setting: `question` and `answer`, or `messages`.

    Raises:
        DataError: If a named column is missing, or the columns cannot be found without doubt.
    """
    messages = names.get("messages")
    if messages is not None:
        return {"messages": named_column("messages", messages, columns, place)}
    named: dict[str, str] = {}
    for setting in ("question", "answer"):
        name = names.get(setting)
        if name is not None:
            named[setting] = named_column(setting, name, columns, place)
    found: dict[str, str | None]
    if named:
        other_columns = [column for column in columns if column not in named.values()]
        missing = [setting for setting in ("question", "answer") if setting not in named]
        found = {setting: found_column(setting, other_columns, place) for setting in missing}
        return named | _complete(found, columns, place)
    chats = usual_columns("messages", columns)
    has_pair = all(usual_columns(setting, columns) for setting in ("question", "answer"))
    if chats and has_pair:
        raise DataError(
            f"{place} has questions with answers and conversations as well; name the columns in "
            f"data.question and data.answer, or in data.messages (all columns: "
            f"{', '.join(columns)})"
        )
    settings = ("messages",) if chats else ("question", "answer")
    found = {setting: found_column(setting, columns, place) for setting in settings}
    return _complete(found, columns, place)


def text_column(name: str | None, columns: Sequence[str], place: str) -> str:
    """Return the column of texts.

    A table with one column has its texts in it, whatever the column is called, unless its name
    looks like a row. Then the file may have no header, and its first row would be lost.

    Raises:
        DataError: If the named column is missing, or the column cannot be found without doubt.
    """
    if name is not None:
        return named_column("text", name, columns, place)
    found = found_column("text", columns, place)
    if found is None and len(columns) == 1:
        hint = header_hint(columns)
        if hint:
            raise DataError(
                f"{place} has only the column {row_text(columns[0])}{hint}, or name it in "
                "data.text if it is the column of texts"
            )
        return columns[0]
    return _complete({"text": found}, columns, place)["text"]


def _complete(
    found: Mapping[str, str | None], columns: Sequence[str], place: str
) -> dict[str, str]:
    """Return the columns by setting.

    Args:
        found: Columns by setting. None for a setting without a column.
        columns: All columns of the table, for messages.
        place: The table, for messages.

    Raises:
        DataError: A setting has no column.
    """
    complete: dict[str, str] = {}
    for setting, column in found.items():
        if column is None:
            usual = ", ".join(USUAL_NAMES[setting])
            raise DataError(
                f"{place} has no column with a usual name of the {setting} ({usual}); name one "
                f"in data.{setting} (all columns: {', '.join(columns) or 'none'}"
                f"{header_hint(columns)})"
            )
        complete[setting] = column
    return complete
