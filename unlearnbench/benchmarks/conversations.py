"""Conversations (chat) as rows: the last answer of the assistant, behind what came before it.

Both usual shapes are read: `{"role": "user", "content": …}` and `{"from": "human", "value": …}`.
The last assistant turn is the answer and the user turn in front of it the question. Earlier pairs
of turns become the row's `examples`, which the model's template renders as turns of the same
conversation. They are context: their answers are neither learned nor unlearned nor scored. A system
turn at the beginning becomes the row's system message. Turns behind the last answer have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
"""Who speaks, by the names that data sets use."""
_SHAPES = (("role", "content"), ("from", "value"))
"""Keys of the speaker and of the text."""


@dataclass(frozen=True)
class Conversation:
    """The parts of a row."""

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
    if spoken and spoken[0][0] == "system":
        system = spoken[0][1]
        spoken = spoken[1:]
    answers = [i for i, (speaker, _) in enumerate(spoken) if speaker == "assistant"]
    if not answers:
        raise DataError(
            f"{place}: column {column!r} has no turn of an assistant, so there is no answer; "
            "add one, or remove the row"
        )
    spoken = spoken[: answers[-1] + 1]
    expected: tuple[Speaker, ...] = ("user", "assistant")
    for i, (speaker, _) in enumerate(spoken):
        if speaker != expected[i % 2]:
            raise DataError(
                f"{place}: column {column!r}: turn {i + 1 + (system is not None)} is of the "
                f"{speaker}, and one of the {expected[i % 2]} is expected: turns of user and "
                "assistant alternate, the user's first, behind at most one system turn; join "
                "turns, or remove the row"
            )
    texts = [text for _, text in spoken]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    question, answer = pairs[-1]
    return Conversation(question, answer, tuple(pairs[:-1]), system)


def _turns(turns: Any, subject: str) -> list[tuple[Speaker, str]]:
    """Return who speaks and what is said, turn by turn. Raises: DataError for anything else."""
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        found = "the text " + row_text(turns) if isinstance(turns, str) else kind_of(turns)
        raise DataError(
            f"{subject} has {found}; a conversation is a list of turns such as "
            '{"role": "user", "content": "…"} or {"from": "human", "value": "…"}'
        )
    return [_turn(turn, f"{subject}, turn {i}") for i, turn in enumerate(turns, 1)]


def _turn(turn: Any, subject: str) -> tuple[Speaker, str]:
    shape = next(
        (keys for keys in _SHAPES if isinstance(turn, Mapping) and turn.get(keys[0]) is not None),
        None,
    )
    if shape is None:
        raise DataError(
            f"{subject} has {kind_of(turn)}; it needs `role` and `content`, or `from` and `value`"
        )
    name, text = turn[shape[0]], turn.get(shape[1])
    speaker = SPEAKERS.get(str(name).lower())
    if speaker is None:
        raise DataError(
            f"{subject}: {shape[0]} {name!r} is none of {', '.join(SPEAKERS)}; a row has turns of "
            "user and assistant, so leave turns of tools out"
        )
    if not isinstance(text, str):
        found = "no text" if text is None else kind_of(text)
        raise DataError(f"{subject}: {shape[1]!r} has {found}; it must be a text")
    if not text.strip():
        raise DataError(f"{subject}: {shape[1]!r} is blank; write a text, or remove the row")
    return speaker, text
