"""A question and its answer as tokens, and which of those tokens are scored.

What is scored is decided by character offsets in the text, not by the prompt's length in tokens:
a token that merges the end of the prompt with the start of the answer is an answer token. EOS is
appended and scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unlearnbench.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Template:
    """How question and answer become text: `before + question + after`, then `tag + answer`."""

    name: str
    before: str
    after: str
    tag: str = ""
    """Text in front of the answer that counts as part of it."""
    special_tokens: bool = True
    """Let the tokenizer add its own (BOS); False where the text already has them."""

    def prompt(self, question: str) -> str:
        """The text up to the answer."""
        return f"{self.before}{question}{self.after}"

    def answer(self, answer: str) -> str:
        """The text that is scored."""
        return f"{self.tag}{answer}"


TEMPLATES: Mapping[str, Template] = {
    # The space goes to the answer, where byte-level BPE puts it into the first word's token.
    "plain": Template("plain", "Question: ", "\nAnswer:", " "),
    # TOFU's own: no space between the tag and the answer.
    "llama-2": Template("llama-2", "[INST] ", " [/INST]"),
    # TOFU's own: the answer's label belongs to the answer, so it is scored and generated.
    "phi": Template("phi", "Question: ", "\n", "Answer: "),
}


def chat_template(tokenizer: PreTrainedTokenizerFast) -> Template:
    """The tokenizer's chat template around one user turn, without a system message."""
    marker = "\x00"
    text = str(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": marker}], tokenize=False, add_generation_prompt=True
        )
    )
    before, found, after = text.partition(marker)
    if not found:
        raise ModelError(
            "the tokenizer's chat template drops or escapes the question; "
            "set the model's `template` to plain, llama-2 or phi"
        )
    return Template("chat", before, after, special_tokens=False)


def resolve_template(name: str, tokenizer: PreTrainedTokenizerFast) -> Template:
    """The template called `name`; `auto` is the chat template where there is one, else plain."""
    has_chat = bool(tokenizer.chat_template)
    if name == "auto":
        name = "chat" if has_chat else "plain"
    if name != "chat":
        return TEMPLATES[name]
    if not has_chat:
        raise ModelError("template: chat, but the tokenizer has none; use auto, plain or another")
    return chat_template(tokenizer)


@dataclass(frozen=True)
class Row:
    """One sequence: prompt, answer, EOS."""

    ids: tuple[int, ...]
    start: int
    """Index of the first scored token, at least 1; `ids[start:]` are all scored."""

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return len(self.ids) - self.start

    def without_first(self, tokens: int) -> Row:
        """The row with its first `tokens` answer tokens no longer scored."""
        return Row(self.ids, min(self.start + tokens, len(self.ids)))


@dataclass(frozen=True)
class Encoder:
    """A tokenizer and a template: text in, rows out."""

    tokenizer: Any
    """A fast tokenizer: offsets are needed."""
    template: Template
    max_length: int
    """Tokens of a row; a longer one is cut, and then has no EOS."""
    eos_after_cut: bool = False
    """A row that was cut ends with an EOS all the same, beyond `max_length`."""

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise ModelError(
                f"tokenizer {type(self.tokenizer).__name__} gives no character offsets, which the "
                "answer masks need; use a model with a fast tokenizer (tokenizer.json)"
            )
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no EOS token, which ends every answer; set one")

    @property
    def eos(self) -> int:
        """Id of the token that ends an answer."""
        return int(self.tokenizer.eos_token_id)

    def row(self, question: str, answer: str) -> Row:
        """Encode a question with its answer; raise ModelError where the prompt fills the row."""
        prompt = self.template.prompt(question)
        encoded = self.tokenizer(
            prompt + self.template.answer(answer),
            add_special_tokens=self.template.special_tokens,
            return_offsets_mapping=True,
        )
        ids = self._without_eos(encoded["input_ids"])
        ends = [end for _, end in encoded["offset_mapping"][: len(ids)]]
        start = next((i for i, end in enumerate(ends) if end > len(prompt)), len(ids))
        start = max(start, 1)  # nothing predicts the first token of a sequence
        ids = (*ids[: self.max_length], self.eos)
        ids = ids if self.eos_after_cut else ids[: self.max_length]
        if start >= len(ids):
            raise ModelError(
                f"no answer token fits into {self.max_length} tokens after a prompt of {start}: "
                f"{question[:60]!r}; raise max_length"
            )
        return Row(ids, start)

    def prompt(self, question: str) -> tuple[int, ...]:
        """Ids of the prompt alone, what generation starts from."""
        encoded = self.tokenizer(
            self.template.prompt(question), add_special_tokens=self.template.special_tokens
        )
        return self._without_eos(encoded["input_ids"])

    def _without_eos(self, ids: list[int]) -> tuple[int, ...]:
        # Some tokenizers append EOS on their own; it is appended once, here, for all of them.
        return tuple(ids[:-1] if ids and ids[-1] == self.eos else ids)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of answer ids, without special tokens and outer white space."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def reference(self, row: Row) -> str:
        """The true answer as decoded from its tokens: what ROUGE compares with."""
        return self.decode(row.ids[row.start :]).removeprefix(self.template.tag.strip()).strip()
