"""Texts that are encoded all at once are the texts that are encoded one at a time."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.templates import TEMPLATES

QUESTIONS = [
    Question("Where was Ada Voss born?", "In Lima.", "She is from Lima.", ("In Oslo.", "In Baku.")),
    Question("Where was Ada Voss born?", "In Lima."),
    Question("Who is she?", "A poet", examples=(("Who is he?", "A cook"),)),
    Question("Which city?", "It is Lima", prefix="It is ", perturbed_answers=("It is Oslo",)),
    Question("Which sea? ", " Red", perturbed_answers=(" Black", " White"), answer_index=1),
    Question("The sea at Lima is ", "cold in June.", format="text"),
    Question("", "Only a text.", format="text"),
    Question("Where?", "In a village in the far north, by the sea. " * 9),
    Question("Where?", "In a village, as far as I know.", max_answer_tokens=3),
]
"""A row of each kind that is encoded by rules of its own."""
CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


class Counted:
    """A tokenizer that counts its calls."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.calls = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return self.tokenizer(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("eos_as_padding", [False, True])
@pytest.mark.parametrize("template", ["plain", "phi", "llama-2", "chat"])
def test_rows_are_the_same_and_need_no_further_call(
    tokenizer: Any, template: str, eos_as_padding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Any = Counted(tokenizer)
    if template == "chat":
        monkeypatch.setattr(tokenizer, "chat_template", CHAT)
        chosen = resolve_template("chat", tokenizer)
    else:
        chosen = TEMPLATES[template]
    encoder = Encoder(counted, chosen, 60, eos_as_padding=eos_as_padding)
    ahead = encoder.encode_ahead(QUESTIONS)
    assert counted.calls <= 2  # with and without special tokens

    for question in QUESTIONS:
        # `reference` encodes the first tokens of such an answer by itself.
        calls_of_reference = int(question.max_answer_tokens is not None)
        calls_before = counted.calls
        rows = [ahead.row(question, answer) for answer in question.scored_answers]
        texts = [
            (
                ahead.prompt(question),
                ahead.reference(row, question),
                ahead.scored_text(row, question),
            )
            for row in rows
        ]
        assert counted.calls - calls_before == calls_of_reference * len(rows), question

        assert rows == [encoder.row(question, answer) for answer in question.scored_answers]
        assert texts == [
            (
                encoder.prompt(question),
                encoder.reference(row, question),
                encoder.scored_text(row, question),
            )
            for row in rows
        ]


def test_other_questions_are_encoded_as_usual(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    ahead = encoder.encode_ahead(QUESTIONS[:1])
    assert ahead.row(QUESTIONS[2]) == encoder.row(QUESTIONS[2])
    assert encoder.encode_ahead([]).row(QUESTIONS[0]) == encoder.row(QUESTIONS[0])


class Watched(Counted):
    """A tokenizer that notes in which threads it is called."""

    def __init__(self, tokenizer: Any, *, is_fast: bool) -> None:
        super().__init__(tokenizer)
        self.is_fast = is_fast
        self.threads: set[threading.Thread] = set()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.threads.add(threading.current_thread())
        return super().__call__(*arguments, **options)


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("is_attacked", [False, True])
def test_a_fast_tokenizer_encodes_a_set_in_a_thread_as_well(
    tokenizer: Any, is_attacked: bool, is_fast: bool
) -> None:
    """Under an attack, the plain prompts are encoded meanwhile, by the same tokenizer."""
    plain = [replace(QUESTIONS[n % 4], question=f"Question {n}?") for n in range(150)]
    rows = plain
    if is_attacked:
        rows = [replace(row, question=f"Please tell: {row.question}") for row in plain]
    watched: Any = Watched(tokenizer, is_fast=is_fast)
    template = TEMPLATES["plain"]
    evaluator = Evaluator({"forget": rows}, watched, template, TOFU, 0, plain={"forget": plain})
    items = evaluator.sets["forget"]
    encoder = Encoder(tokenizer, template, TOFU.max_length)
    assert [item.question for item in items] == rows
    for item, row, own in zip(items, rows, plain, strict=True):
        assert item.rows == tuple(encoder.row(row, answer) for answer in row.scored_answers)
        assert item.added == max(len(encoder.prompt(row)) - len(encoder.prompt(own)), 0)
    in_other_threads = watched.threads - {threading.current_thread()}
    assert bool(in_other_threads) == is_fast
