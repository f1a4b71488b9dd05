"""The text around questions and answers: templates of our own, and the form of a chat template.

A prompt is everything up to the answer. With the template `phi` it is the first two lines:

    Question: Where was Ada born?
    Answer: In Lima.

The second line is the template's `tag` and the answer. The tag stands in front of every answer and
is scored and generated together with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import ModelError


@dataclass(frozen=True)
class TurnEnd:
    """What a chat template writes after an answer, up to its first control token."""

    text: str
    """The text in front of the control token, such as Llama 2's space; without a control token, all
    of the text."""
    token: str = ""
    """The control token, such as `<end_of_turn>`; empty if plain text ends the turn."""


class Turn(NamedTuple):
    """The text around the answer of an example, which stands in front of the question."""

    before_answer: str
    """Between the example's question and its answer."""
    after_answer: str
    """Between the example's answer and the next question."""


class SystemText(NamedTuple):
    """The text around a system message. It takes the place of `Template.before`."""

    before: str
    after: str
    """Between the system message and the question, or the first example."""


@dataclass(frozen=True)
class Template:
    """The text of a question and its answer: `before + question + after`, then `tag + answer`."""

    name: str
    before: str
    after: str
    tag: str = ""
    """Text in front of the answer that is scored and generated with it."""
    special_tokens: bool = True
    """Whether the tokenizer adds its own (BOS). False if the text already has them."""
    turn: tuple[str, str] | None = None
    """See `Turn`. None if the template has no examples in front of a question."""
    system: tuple[str, str] | None = None
    """See `SystemText`. None if the template has no system messages."""
    end: str = ""
    """Text that a chat template writes after the last answer."""
    turn_end: TurnEnd | None = None
    """What ends an answer. None if it is EOS alone."""
    answers_elsewhere: bool = False
    """Whether a chat template renders answers after another text than its prompts end with."""
    tag_switch: str = ""
    """Variable by which a chat template writes the tag into the prompt: `enable_thinking: false`.
    Empty if there is no tag, or no such variable is known."""
    trims: bool = False
    """Whether a chat template removes blanks around messages."""
    trims_answers: bool = False
    """Whether a chat template removes blanks around answers."""
    is_begun: bool = False
    """Whether the beginning of the answer is given. A blank in front of the rest then belongs to
    the rest."""

    def digest(self, *, with_examples: bool = False) -> str:
        """Return the first 16 hex digits of the SHA-256 of the text around question and answer.

        Args:
            with_examples: Whether the text around examples is included.

        Raises:
            ModelError: Examples are included, and the template has no turns for them.
        """
        around: list[Any] = [self.before, self.after, self.tag, self.special_tokens]
        if with_examples:
            around.append(self._example_turn())
        if self.may_merge:
            # Earlier versions scored the token that contains both. Their digests lack this word.
            around.append("counted")
        return hashlib.sha256(json.dumps(around).encode()).hexdigest()[:16]

    @property
    def may_merge(self) -> bool:
        """Whether a token may contain the prompt's end and the answer's beginning."""
        return not (self.after.endswith("\n") or self.tag[:1].isspace())

    @property
    def label(self) -> str:
        """The tag without white space; empty for a tag of white space alone."""
        return self.tag.strip()

    def of(self, row: Question) -> Template:
        """Return the template with a row's system message, tag, and the beginning of its answer.

        If the beginning of the answer is given, it becomes part of the prompt together with the
        tag.

        Raises:
            ModelError: The row has a system message, and the template has none.
        """
        template = self
        if row.system is not None:
            template = template._with_system(row.system)
        if row.tag:
            template = template._with_tag(row.tag)
        if row.prefix:
            template = replace(
                template,
                after=f"{template.after}{template.tag}{row.prefix}",
                tag="",
                is_begun=True,
            )
        return template

    def _with_system(self, message: str) -> Template:
        if self.system is None:
            raise ModelError(
                f"the model's template, {self.name}, has no system messages, which rows with "
                "one and the attack `system-prompt` need; set the model's `template` to a "
                "chat template that has them or to llama-2, or leave the attack out"
            )
        around = SystemText(*self.system)
        return replace(self, before=f"{around.before}{self._message(message)}{around.after}")

    def _with_tag(self, tag: str) -> Template:
        if self.turn is None:
            return replace(self, tag=f"{self.tag}{tag}")
        turn = Turn(*self.turn)
        # The answers of examples follow the row's tag, too.
        turn = turn._replace(before_answer=f"{turn.before_answer}{tag}")
        return replace(self, tag=f"{self.tag}{tag}", turn=turn)

    def prompt(self, question: str, examples: Sequence[tuple[str, str]] = ()) -> str:
        """Return the text up to the answer.

        Args:
            question: The question.
            examples: Questions and answers in front of it.

        Raises:
            ModelError: There are examples, and the template has no turns for them.
        """
        texts = [self.before]
        for example_question, example_answer in examples:
            turn = self._example_turn()
            texts.append(self._message(example_question))
            texts.append(turn.before_answer)
            texts.append(self._answer(example_answer))
            texts.append(turn.after_answer)
        texts.append(self._message(question))
        texts.append(self.after)
        return "".join(texts)

    def answer(self, answer: str) -> str:
        """Return the text that is scored: the tag and an answer."""
        if self.is_begun and self.trims_answers:
            return answer.rstrip()
        return f"{self.tag}{self._answer(answer)}"

    def _message(self, text: str) -> str:
        return text.strip() if self.trims else text

    def _answer(self, text: str) -> str:
        return text.strip() if self.trims_answers else text

    def _example_turn(self) -> Turn:
        if self.turn is None:
            raise ModelError(
                "the tokenizer's chat template renders no conversation of several turns, which "
                "rows with few-shot examples, attacks by several turns and the method `icul` need; "
                "set the model's "
                "`template` to plain, llama-2 or phi, or use rows in the format `text`"
            )
        return Turn(*self.turn)


TEMPLATES: Mapping[str, Template] = {
    # The space belongs to the answer. Byte-level BPE puts it into the token of the first word.
    "plain": Template(
        "plain", "Question: ", "\nAnswer:", " ", turn=("\nAnswer: ", "\n\nQuestion: ")
    ),
    # TOFU's own: no space between the tag and the answer. Each turn is a sequence of its own, as
    # in Llama's training.
    "llama-2": Template(
        "llama-2",
        "[INST] ",
        " [/INST]",
        turn=(" [/INST]", "</s><s>[INST] "),
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
    ),
    # TOFU's own: `Answer: ` belongs to the answer, so it is scored and generated.
    "phi": Template("phi", "Question: ", "\n", "Answer: ", turn=("\nAnswer: ", "\n\nQuestion: ")),
}
"""Templates of our own by the name that a configuration gives them."""
TEXT = Template("text", "", "", turn=("", "\n\n"))
"""Template of rows in the format `text`, whatever the model's template is."""
OPTION = replace(TEXT, tag=" ")
"""Template of the options of a multiple choice in the format `text`."""
