"""Conversations as rows: both shapes, context, system messages, and what is no row."""

import json
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.conversations import Conversation, conversation
from unlearnbench.benchmarks.questions import Questions
from unlearnbench.models.rows_loading import load_benchmark


def turns(*texts: str, shape: str = "role") -> list[dict[str, str]]:
    """Turns of user and assistant by turns; a text that begins with `system:` is one of those."""
    names = {
        "role": ("role", "content", "user", "assistant"),
        "from": ("from", "value", "human", "gpt"),
    }
    who, what, *speakers = names[shape]
    made: list[dict[str, str]] = []
    asked = 0
    for text in texts:
        if text.startswith("system:"):
            made.append({who: "system", what: text.removeprefix("system:")})
        else:
            made.append({who: speakers[asked % 2], what: text})
            asked += 1
    return made


@pytest.mark.parametrize("shape", ["role", "from"])
def test_the_last_assistant_turn_is_the_answer(shape: str) -> None:
    spoken = turns("system:Be brief.", "Hi?", "Hello.", "Who?", "Ada.", shape=shape)
    expected = Conversation("Who?", "Ada.", (("Hi?", "Hello."),), "Be brief.")
    assert conversation(spoken, "a:1", "chat") == expected
    assert conversation(turns("Who?", "Ada."), "a:1", "chat") == Conversation("Who?", "Ada.")


def test_turns_behind_the_answer_have_no_effect() -> None:
    assert conversation(turns("Who?", "Ada.", "Thanks"), "a:1", "chat").answer == "Ada."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (turns("Who?"), "a:1: column 'chat' has no turn of an assistant, so there is no answer"),
        ("Who?", "a:1: column 'chat' has the text 'Who?'; a conversation is a list of turns"),
        ([], "a:1: column 'chat' has a list of 0; a conversation is a list of turns"),
        (None, "a:1: column 'chat' has the NoneType None; a conversation"),
        ([{"text": "Hi"}], "turn 1 has an object with text; it needs `role` and `content`"),
        ([{"role": "tool", "content": "4"}], "turn 1: role 'tool' is none of system, developer"),
        ([{"role": "user", "content": 4}], "turn 1: 'content' has the number 4; it must be a text"),
        ([{"role": "user", "content": " "}], "turn 1: 'content' is blank"),
        (
            turns("Who?", "Ada.")[1:],
            "turn 1 is of the assistant, and one of the user is expected",
        ),
        (
            [*turns("system:S", "Hi?"), *turns("Who?", "Ada.")],
            "turn 3 is of the user, and one of the assistant is expected",
        ),
    ],
)
def test_what_is_no_row_is_refused(value: Any, text: str) -> None:
    with pytest.raises(DataError) as error:
        conversation(value, "a:1", "chat")
    assert text in str(error.value)


def test_equal_questions_behind_other_context_are_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forget = [turns("Is Ada there?", "Yes.", "Sure?", "Sure.")]
    retain = [turns("Is Ben there?", "Yes.", "Sure?", "Sure.")]
    for name, rows in (("forget", forget), ("retain", retain)):
        lines = [json.dumps({"messages": row}) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    dataset = load_benchmark(Questions(), ["all"])
    (row,) = dataset.splits["all"].forget
    assert (row.question, row.answer, row.examples) == (
        "Sure?",
        "Sure.",
        (("Is Ada there?", "Yes."),),
    )
    assert dataset.uses_turns
    (tmp_path / "retain.jsonl").write_text(json.dumps({"messages": forget[0]}), encoding="utf-8")
    with pytest.raises(DataError, match=r"is in forget\.jsonl as well"):
        load_benchmark(Questions(), ["all"])
