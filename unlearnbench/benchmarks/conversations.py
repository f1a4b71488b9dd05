"""Conversations (chat) as rows: the last answer of the assistant, after the turns before it.

Both usual shapes are read: `{"role": "user", "content": …}` and `{"from": "human", "value": …}`.
The last assistant turn is the answer, and the user turn in front of it is the question. Earlier
pairs of turns become the row's `examples`, which the model's template renders as turns of the same
conversation. They are context: their answers are neither learned nor unlearned nor scored. A system
turn at the beginning becomes the row's system message. Turns after the last answer are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from unlearnbench.base.errors import DataError
from unlearnbench.base.row_texts import row_text
from unlearnbench.benchmarks.own_tables import kind_of

Speaker = Literal["system", "user", "assistant"]
SPEAKERS: Mapping[str, Speaker] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
}
"""Speaker by the name that a data set uses."""


class _Shape(NamedTuple):
    """Keys of a turn."""

    speaker: str
    text: str


_SHAPES = (_Shape("role", "content"), _Shape("from", "value"))


class _Turn(NamedTuple):
    """A turn of a conversation."""

    speaker: Speaker
    text: str


@dataclass(frozen=True)
class Conversation:
    """A conversation as the parts of a row."""

    question: str
    answer: str
    examples: tuple[tuple[str, str], ...] = ()
    """Earlier questions with their answers."""
    system: str | None = None


def conversation(turns: Any, place: str, column: str) -> Conversation:
    """Return the parts of a row from its turns.

    Args:
        turns: The value of the column.
        place: The row, for messages.
        column: The column, for messages.

    Raises:
        DataError: If it is no conversation, or has no answer.
    """
    spoken = _turns(turns, f"{place}: column {column!r}")
    system = None
    if spoken and spoken[0].speaker == "system":
        system = spoken[0].text
        spoken = spoken[1:]
    answers = [i for i, turn in enumerate(spoken) if turn.speaker == "assistant"]
    if not answers:
        raise DataError(
            f"{place}: column {column!r} has no turn of an assistant, so there is no answer; "
            "add one, or remove the row"
        )
    spoken = spoken[: answers[-1] + 1]
    first_number = 1 if system is None else 2
    for i, turn in enumerate(spoken):
        expected: Speaker = "user" if i % 2 == 0 else "assistant"
        if turn.speaker != expected:
            raise DataError(
                f"{place}: column {column!r}: turn {first_number + i} is of the "
                f"{turn.speaker}, and one of the {expected} is expected: turns of user and "
                "assistant alternate, the user's first, behind at most one system turn; join "
                "turns, or remove the row"
            )
    texts = [turn.text for turn in spoken]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    question, answer = pairs[-1]
    return Conversation(question, answer, tuple(pairs[:-1]), system)


def _turns(turns: Any, subject: str) -> list[_Turn]:
    """Read the turns of a conversation.

    Args:
        turns: The value of the column.
        subject: Row and column, for messages.

    Raises:
        DataError: The value is no conversation.
    """
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        found = "the text " + row_text(turns) if isinstance(turns, str) else kind_of(turns)
        raise DataError(
            f"{subject} has {found}; a conversation is a list of turns such as "
            '{"role": "user", "content": "…"} or {"from": "human", "value": "…"}'
        )
    return [_turn(turn, f"{subject}, turn {i}") for i, turn in enumerate(turns, 1)]


def _turn(turn: Any, subject: str) -> _Turn:
    shape = _shape_of(turn)
    if shape is None:
        raise DataError(
            f"{subject} has {kind_of(turn)}; it needs `role` and `content`, or `from` and `value`"
        )
    name = turn[shape.speaker]
    text = turn.get(shape.text)
    speaker = SPEAKERS.get(str(name).lower())
    if speaker is None:
        raise DataError(
            f"{subject}: {shape.speaker} {name!r} is none of {', '.join(SPEAKERS)}; a row has "
            "turns of user and assistant, so leave turns of tools out"
        )
    if not isinstance(text, str):
        found = "no text" if text is None else kind_of(text)
        raise DataError(f"{subject}: {shape.text!r} has {found}; it must be a text")
    if not text.strip():
        raise DataError(f"{subject}: {shape.text!r} is blank; write a text, or remove the row")
    return _Turn(speaker, text)


def _shape_of(turn: Any) -> _Shape | None:
    """Return the keys that a turn has; None if it has neither pair of keys."""
    if not isinstance(turn, Mapping):
        return None
    return next((shape for shape in _SHAPES if turn.get(shape.speaker) is not None), None)
