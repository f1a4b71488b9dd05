"""Encode questions with their answers as rows of tokens, of which the answers are scored.

All tokens are scored but as many as the prompt has alone, as TOFU, open-unlearning and
lm-evaluation-harness count them: a token that merges the prompt's end with the answer's beginning,
such as Llama-2's `]"`, is not. A blank at the end of a prompt that a row brings along is an
exception. Many tokenizers join it with the answer's first word, which is scored, as
lm-evaluation-harness scores an option behind such a blank. What ends the turn is appended and
scored: EOS, or what the model's chat template writes there, such as Gemma's `<end_of_turn>`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jinja2 import UndefinedError

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import DataError, ModelError
from unlearnbench.base.row_texts import row_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class TurnEnd:
    """What a chat template writes behind an answer, up to its first control token."""

    text: str
    """Text in front of the control token, such as Llama 2's space; without a control token, all."""
    token: str = ""
    """The control token, such as `<end_of_turn>`; empty if plain text ends the turn."""


@dataclass(frozen=True)
class Template:
    """The text of a question and its answer: `before + question + after`, then `tag + answer`."""

    name: str
    before: str
    after: str
    tag: str = ""
    """Text in front of the answer that is scored and generated with it."""
    special_tokens: bool = True
    """The tokenizer adds its own (BOS); False where the text already has them."""
    turn: tuple[str, str] | None = None
    """Text between the question and the answer of an example, and between that and the next
    question; None where the template has no such turns."""
    system: tuple[str, str] | None = None
    """Text in front of a system message, and between that and the question, in place of `before`;
    None where the template has no system messages."""
    end: str = ""
    """Text that a chat template writes behind the last answer."""
    turn_end: TurnEnd | None = None
    """What ends an answer, where a chat template writes something else there than EOS alone."""
    answers_elsewhere: bool = False
    """A chat template renders answers behind another text than its prompts end with."""
    tag_switch: str = ""
    """Variable by which the chat template's prompt writes the tag itself, `enable_thinking: false`.
    Empty if there is no tag, or no such variable is known."""
    trims: bool = False
    """A chat template removes blanks around messages."""
    trims_answers: bool = False
    """A chat template removes blanks around answers."""
    is_begun: bool = False
    """The beginning of the answer is given, so that a blank in front of the rest belongs to it."""

    def digest(self, *, with_examples: bool = False) -> str:
        """First 16 hex digits of the SHA-256 of the rendered text around question and answer.

        with_examples  around those of examples, too
        """
        around: list[Any] = [self.before, self.after, self.tag, self.special_tokens]
        if with_examples:
            around.append(self._turn())
        if self.may_merge:  # earlier versions scored the token that holds both
            around.append("counted")
        return hashlib.sha256(json.dumps(around).encode()).hexdigest()[:16]

    @property
    def may_merge(self) -> bool:
        """True if a token may hold the prompt's end and the answer's beginning."""
        return not (self.after.endswith("\n") or self.tag[:1].isspace())

    @property
    def label(self) -> str:
        """The tag without white space; empty for a tag of white space alone."""
        return self.tag.strip()

    def of(self, row: Question) -> Template:
        """The template with a row's system message, tag, and the beginning of its answer.

        The tag is part of the prompt where the answer's beginning is given.

        Raises: ModelError for a system message where the template has none.
        """
        part = self
        if row.system is not None:
            if self.system is None:
                raise ModelError(
                    f"the model's template, {self.name}, has no system messages, which rows with "
                    "one and the attack `system-prompt` need; set the model's `template` to a "
                    "chat template that has them or to llama-2, or leave the attack out"
                )
            first, last = self.system
            part = replace(part, before=f"{first}{self._message(row.system)}{last}")
        if row.tag:
            part = replace(part, tag=f"{part.tag}{row.tag}")
            if part.turn is not None:
                middle, end = part.turn
                part = replace(part, turn=(f"{middle}{row.tag}", end))
        if row.prefix:
            after = f"{part.after}{part.tag}{row.prefix}"
            part = replace(part, after=after, tag="", is_begun=True)
        return part

    def prompt(self, question: str, examples: Sequence[tuple[str, str]] = ()) -> str:
        """The text up to the answer.

        Raises: ModelError for examples where the template has no turns for them.
        """
        turns = ""
        if examples:
            middle, end = self._turn()
            pairs = [(self._message(shown), self._answer(answer)) for shown, answer in examples]
            turns = "".join(f"{shown}{middle}{answer}{end}" for shown, answer in pairs)
        return f"{self.before}{turns}{self._message(question)}{self.after}"

    def _message(self, text: str) -> str:
        return text.strip() if self.trims else text

    def _answer(self, text: str) -> str:
        return text.strip() if self.trims_answers else text

    def answer(self, answer: str) -> str:
        """The text that is scored."""
        if self.is_begun and self.trims_answers:
            return answer.rstrip()
        return f"{self.tag}{self._answer(answer)}"

    def _turn(self) -> tuple[str, str]:
        if self.turn is None:
            raise ModelError(
                "the tokenizer's chat template renders no conversation of several turns, which "
                "rows with few-shot examples and attacks by several turns need; set the model's "
                "`template` to plain, llama-2 or phi, or use rows in the format `text`"
            )
        return self.turn


TEMPLATES: Mapping[str, Template] = {
    # The space goes to the answer, where byte-level BPE puts it into the first word's token.
    "plain": Template(
        "plain", "Question: ", "\nAnswer:", " ", turn=("\nAnswer: ", "\n\nQuestion: ")
    ),
    # TOFU's own: no space between the tag and the answer. Each turn is a sequence of Llama's own.
    "llama-2": Template(
        "llama-2",
        "[INST] ",
        " [/INST]",
        turn=(" [/INST]", "</s><s>[INST] "),
        system=("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
    ),
    # TOFU's own: the answer's label belongs to the answer, so it is scored and generated.
    "phi": Template("phi", "Question: ", "\n", "Answer: ", turn=("\nAnswer: ", "\n\nQuestion: ")),
}
TEXT = Template("text", "", "", turn=("", "\n\n"))
"""Template of rows in the format `text`, whatever the model's."""
_OPTION = replace(TEXT, tag=" ")
"""The same for a multiple choice."""


TemplateArgs = Mapping[str, str | int | bool]
"""Variables of a chat template, and `system_prompt`, the text of a system message."""

_MARKER = "\x00"
"""Stands for the text of a message."""
_SYSTEM_MARKER = "\x01"
"""Stands for the text of a system message."""
_SWITCHES = ("enable_thinking", "thinking")
"""Variables that are off in templates whose prompts then write an empty block of thoughts."""
_CLOCK = "strftime_now"
"""Function of transformers by which chat templates read today's date."""


def chat_template(tokenizer: PreTrainedTokenizerFast, args: TemplateArgs | None = None) -> Template:
    """The tokenizer's chat template around one user turn.

    args  `system_prompt` becomes a system message in front; all else are the template's variables

    Raises: ModelError where the template drops the question, or writes today's date into prompts.
    """
    variables: dict[str, Any] = dict(args or {})
    system = variables.pop("system_prompt", None)
    first = [] if system is None else [{"role": "system", "content": str(system)}]

    def rendered(
        template: str | None = None,
        examples: int = 0,
        first: Sequence[dict[str, str]] = first,
        *,
        whole: bool = False,
        prompt: bool | None = None,
        blank: str = "",
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        has_prompt = not whole if prompt is None else prompt
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": has_prompt}
        options["chat_template"] = template
        roles = [*("user", "assistant") * examples, *(() if whole else ("user",))]
        content = f"{blank}{_MARKER}{blank}"
        messages = [*first, *({"role": role, "content": content} for role in roles)]
        return str(tokenizer.apply_chat_template(messages, **{**variables, **more, **options}))

    try:
        text = rendered()
    except Exception as error:  # templates are programs and may raise anything
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"the tokenizer's chat template fails ({type(error).__name__}: {reason}); correct it "
            "in the tokenizer's folder, or set the model's `template` to plain, llama-2 or phi"
        ) from error
    before, result, after = text.partition(_MARKER)
    if not result:
        raise ModelError(
            "the tokenizer's chat template drops or escapes the question; "
            "set the model's `template` to plain, llama-2 or phi"
        )
    if _depends_on_clock(tokenizer, text, rendered):
        raise ModelError(
            "the tokenizer's chat template writes today's date into every prompt: token ids, and "
            "with them all numbers, would change at midnight. Fix the date that the model was "
            "trained with, template_args: {date_string: 26 Jul 2024} for example"
        )
    if system is not None and str(system).strip() not in text:
        raise ModelError(
            "template_args.system_prompt: the tokenizer's chat template leaves system messages out"
        )
    turn = _turn(before, after, rendered)
    tag, end = _around_answer(before, after, rendered)
    written = _behind_answer(rendered)
    # Some templates write the beginning of the next answer behind every conversation.
    always_prompts = turn is not None and text == rendered(prompt=False)
    return Template(
        "chat",
        before,
        after,
        tag,
        special_tokens=False,
        turn=turn,
        system=_system(after, turn, rendered),
        end=end,
        turn_end=_turn_end(written, turn if always_prompts else None, tokenizer),
        answers_elsewhere=bool(written) and not (tag or end),
        tag_switch=_tag_switch(variables, rendered) if tag.strip() else "",
        trims=rendered(blank=" ") == text,
        trims_answers=_trims_answers(rendered),
    )


def _trims_answers(rendered: Callable[..., str]) -> bool:
    """Whether the template removes blanks around answers."""
    with suppress(Exception):  # templates are programs and may raise anything
        bare = rendered(None, 1, whole=True).split(_MARKER)
        blank = rendered(None, 1, whole=True, blank=" ").split(_MARKER)
        # The question in front may keep its blanks.
        return bare[2] == blank[2] and blank[1] in (bare[1], f" {bare[1]}")
    return False


def _turn_end(
    end: str, turn: tuple[str, str] | None, tokenizer: PreTrainedTokenizerFast
) -> TurnEnd | None:
    """What ends an answer; None if it is EOS alone.

    The text behind the first control token is no part of the turn's end. Examples are the line
    break behind ChatML's `<|im_end|>`, and the EOS that Phi-3 writes behind `<|end|>`.

    Args:
        end: Text that the template writes behind the last answer.
        turn: Text around an example's answer, if the template writes the beginning of the next
            answer behind every conversation. Only what both have in common ends an answer then.
    """
    if turn is not None:
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(end, turn[1], strict=False))
        end = end[: len([*equal])]
    controls = [token for token in control_tokens(tokenizer) if token in end]
    if not controls:
        return TurnEnd(end.rstrip()) if end.strip() else None
    # Of two tokens at one place, the tokenizer takes the longer one.
    first = min(controls, key=lambda token: (end.index(token), -len(token)))
    text = end[: end.index(first)]
    return None if not text and first == tokenizer.eos_token else TurnEnd(text, first)


def control_tokens(tokenizer: Any) -> frozenset[str]:
    """The added tokens that are not white space: what stands for no text of a user."""
    return frozenset(token for token in tokenizer.get_added_vocab() if token.strip())


def _tag_switch(variables: Mapping[str, Any], rendered: Callable[..., str]) -> str:
    """The variable by which prompts write the text in front of answers; empty for none."""
    for name in _SWITCHES:
        off = {name: False}
        if name in variables:
            continue
        with suppress(Exception):  # templates are programs and may raise anything
            before, after = rendered(more=off).split(_MARKER)
            begin, middle, _ = rendered(None, 1, whole=True, more=off).split(_MARKER)
            is_same = begin == before and middle.startswith(after)
            if is_same and not middle.removeprefix(after).strip():
                return f"{name}: false"
    return ""


def _system(
    after: str, turn: tuple[str, str] | None, rendered: Callable[..., str]
) -> tuple[str, str] | None:
    """The text around a system message; None where it is refused, or left out."""
    first = [{"role": "system", "content": _SYSTEM_MARKER}]
    try:
        before, end = rendered(first=first).split(_MARKER)
        parts = before.split(_SYSTEM_MARKER)
        if len(parts) != 2 or end != after:
            return None
        if turn is not None and _turn(before, after, partial(rendered, first=first)) != turn:
            return None
    except Exception:  # templates are programs and may raise anything
        return None
    return parts[0], parts[1]


def _around_answer(before: str, after: str, rendered: Callable[..., str]) -> tuple[str, str]:
    """The text between a prompt to answer and the last answer (in Llama 2 a space), and behind it;
    none where an answer is refused, or changes the rest."""
    try:
        begin, middle, end = rendered(None, 1, whole=True).split(_MARKER)
    except Exception:  # templates are programs and may raise anything
        return "", ""
    same = begin == before and middle.startswith(after)
    return (middle.removeprefix(after), end) if same else ("", "")


def _behind_answer(rendered: Callable[..., str]) -> str:
    """The text behind the last answer, also where prompts end unlike conversations with answers.

    An example are models whose prompts open a block of thoughts, which answers do not show.
    """
    with suppress(Exception):  # templates are programs and may raise anything
        _, _, end = rendered(None, 1, whole=True).split(_MARKER)
        return end
    return ""


def _turn(before: str, after: str, rendered: Callable[..., str]) -> tuple[str, str] | None:
    """The text around an example's answer; None where turns are refused, or change the rest."""
    try:
        parts = rendered(None, 2).split(_MARKER)
    except Exception:  # templates are programs and may raise anything
        return None
    turns = {(parts[i], parts[i + 1]) for i in range(1, len(parts) - 2, 2)}
    same = (len(parts), parts[0], parts[-1], len(turns)) == (6, before, after, 1)
    return turns.pop() if same else None


def _depends_on_clock(tokenizer: Any, text: str, rendered: Callable[[str], str]) -> bool:
    """True if `text` changes when the template has no clock."""
    source = tokenizer.get_chat_template()
    if _CLOCK not in source:
        return False
    try:
        # Under another name the clock is undefined; a template without it renders the same.
        return rendered(source.replace(_CLOCK, f"{_CLOCK}_hidden")) != text
    except UndefinedError:
        return True


def no_variables(template: str) -> str:
    """Message for `template_args` with a template that has no variables."""
    return (
        f"template_args: only chat templates have variables, and the model's template is "
        f"{template}; leave template_args out"
    )


def resolve_template(
    name: str, tokenizer: PreTrainedTokenizerFast, args: TemplateArgs | None = None
) -> Template:
    """The template called `name`; `auto` is the chat template where there is one, else plain.

    args  of a chat template, see `chat_template`; an error with any other
    """
    has_chat = bool(tokenizer.chat_template)
    if name == "auto":
        name = "chat" if has_chat else "plain"
    if name != "chat":
        if args:
            raise ModelError(no_variables(name))
        return TEMPLATES[name]
    if not has_chat:
        raise ModelError(
            "template is chat, but the tokenizer has no chat template; use auto, plain or another"
        )
    return chat_template(tokenizer, args)


@dataclass(frozen=True)
class Row:
    """One sequence: prompt, answer, the turn's end."""

    ids: tuple[int, ...]
    start: int
    """Index of the first scored token, at least 1; `ids[start:]` are all scored."""
    scores: tuple[float, ...] = field(default=(), compare=False)
    """Score of each token of `ids[start:]`, or empty. Equality of rows ignores it: the start
    model's predictions, which are looked up by row, do not depend on it."""
    label: int = field(default=0, compare=False)
    """Number of scored tokens in front of the answer, which `without_first` does not count."""
    masked: tuple[int, ...] = ()
    """Indices of tokens that no token sees, not even itself."""
    cut: bool = field(default=False, compare=False)
    """True if it was too long."""
    end_tokens: int = field(default=0, compare=False)
    """Number of last tokens that end the turn; 0 where the answer was cut before them."""

    @property
    def ended(self) -> bool:
        """True if the last token ends the turn."""
        return self.end_tokens > 0

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return len(self.ids) - self.start

    @property
    def whole(self) -> Row:
        """The row with all tokens scored but the first, which nothing predicts."""
        return Row(self.ids, 1, masked=self.masked)

    def without_first(self, tokens: int) -> Row:
        """The row with its label and its first `tokens` answer tokens no longer scored.

        With 0 tokens the label is scored like the rest.
        """
        if tokens == 0:
            return self
        unseen = self.label + tokens
        start = min(self.start + unseen, len(self.ids))
        return Row(self.ids, start, self.scores[unseen:], masked=self.masked)


@lru_cache(maxsize=2)  # with each of its answers a question's prompt is encoded again
def _encoded(tokenizer: Any, text: str, special_tokens: bool) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=special_tokens)["input_ids"])


def check_scored(row: Question) -> None:
    """Raise DataError where a row has no score."""
    if row.score is None:
        where = row.place or "the generated benchmark"
        raise DataError(
            f"{where}: no column 'score', which a method reads from every such row; add a number "
            f"from 0 (unlearn) to 1 (learn), or set the method's scores to constant"
        )


@dataclass(frozen=True)
class Encoder:
    """A tokenizer and a template: text in, rows out."""

    tokenizer: Any
    template: Template
    max_length: int
    """Tokens of a row; a longer one is cut, and then has no EOS."""
    eos_after_cut: bool = False
    """A row that was cut also ends with an EOS, beyond `max_length`."""
    ignore_label: bool = True
    """Rows mark the template's label, which is then ignored with an answer's first tokens."""
    further_stops: frozenset[int] = frozenset()
    """Ids of `generation_config.eos_token_id` of the model whose answers are sampled."""
    eos_as_padding: bool = False
    """Padding, EOS where the tokenizer has none of its own, is masked inside texts, too, and what a
    chat template writes behind an answer is scored, with one more EOS: as in open-unlearning."""

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no EOS token, which ends every answer; set one")

    @cached_property
    def eos(self) -> int:
        """Id of the tokenizer's EOS, which ends an answer where the template names nothing else."""
        return int(self.tokenizer.eos_token_id)

    @cached_property
    def _turn_end(self) -> tuple[str, tuple[int, ...]]:
        """What ends an answer of the chat template: text, and the id of the token behind it."""
        if self.eos_as_padding:
            return self.template.end, (self.eos,)
        end = self.template.turn_end
        if end is None:
            return "", (self.eos,)
        token = (int(self.tokenizer.convert_tokens_to_ids(end.token)),) if end.token else ()
        return end.text, token

    def _ending(self, question: Question) -> tuple[str, tuple[int, ...]]:
        """What ends the answer to a question: text, and the id of the token behind it, if any."""
        return ("", (self.eos,)) if question.format == "text" else self._turn_end

    def end_ids(self, question: Question) -> tuple[int, ...]:
        """The token that ends an answer; EOS where plain text ends it."""
        return self._ending(question)[1] or (self.eos,)

    @property
    def end_text(self) -> str:
        """Text that ends an answer where no token does; empty elsewhere."""
        text, token = self._turn_end
        return "" if token else text.strip()

    @cached_property
    def stops(self) -> frozenset[int]:
        """Ids of the tokens at which an answer is over."""
        return frozenset((self.eos, *self._turn_end[1])) | self.further_stops

    @cached_property
    def padding(self) -> int | None:
        """Id that is masked wherever it stands; None for none."""
        if not self.eos_as_padding:
            return None
        pad = self.tokenizer.pad_token_id
        return self.eos if pad is None else int(pad)

    def scored_row(self, row: Question) -> Row:
        """Encode a row of the data with its score by token.

        Raises: ModelError where the prompt fills the row, DataError where there is no score or not
        one for each token of the answer.
        """
        check_scored(row)
        encoded = self.row(row)
        if not isinstance(row.score, tuple):
            return replace(encoded, scores=(float(row.score or 0),) * encoded.scored)
        whole = replace(self, max_length=sys.maxsize).row(row).scored
        if len(row.score) != whole:
            raise DataError(
                f"{row.place}: column 'score' has {len(row.score)} numbers, and the answer has "
                f"{whole} tokens as this model's tokenizer reads it, the one that ends it "
                f"included; give one number for each of them, or one for the whole answer"
            )
        return replace(encoded, scores=row.score[: encoded.scored])

    def text(self, text: str) -> tuple[int, ...]:
        """Ids of a text alone."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def row(self, question: Question, answer: str | None = None) -> Row:
        """Encode a question with its answer, or with another; plain text has no question.

        Raises: ModelError where the prompt fills the row.
        """
        template, is_option = self._template(question), question.answer_index is not None
        prompt = self._ids(template, question)
        answer = question.answer if answer is None else answer
        answer = question.behind_prefix(answer) if question.prefix else answer
        end, end_ids = ("", ()) if is_option else self._ending(question)
        ids = self._ids(template, question, template.answer(answer) + end)
        start = len(prompt)
        begins_with_word = not template.answer(answer)[:1].isspace()
        if not is_option and begins_with_word and _ends_in_blank(question):
            # A token of that blank and the answer's first word is all the answer's.
            start = _shared(prompt, ids)
        most, length = self.max_length, len(ids)
        if question.max_answer_tokens is not None:
            most = min(most, start + question.max_answer_tokens)
        if is_option:
            ids, start = ids[-most:], start - max(length - most, 0)
        else:
            ids = (*ids[:most], *end_ids)
            ids = ids if self.eos_after_cut else ids[:most]
        start = max(start, 1)  # nothing predicts the first token of a sequence
        if start >= len(ids):
            raise ModelError(
                f"no answer token fits into {most} tokens after a prompt of {start}: "
                f"{question.place or row_text(question.question[:60])}; raise max_length"
            )
        masked = tuple(i for i, token in enumerate(ids[:-1]) if token == self.padding)
        is_cut = length + len(end_ids) > self.max_length
        has_whole_end = ids[-1:] == end_ids if end_ids else length <= most
        ended = has_whole_end and not is_option
        end_tokens = int(ended)
        if end and ended and length <= most and not self.eos_as_padding:
            bare = self._ids(template, question, template.answer(answer))
            end_tokens = max(length + len(end_ids) - len(bare), 1)
        row = Row(ids, start, masked=masked, cut=is_cut, end_tokens=end_tokens)
        return self.labelled(row, question)

    def length(self, question: Question) -> int:
        """Return the number of tokens of a question with its answer, before it is cut."""
        return len(replace(self, max_length=sys.maxsize).row(question).ids)

    def labelled(self, row: Row, question: Question) -> Row:
        """Add the number of tokens of the template's label that the answer begins with.

        0 where the label is incomplete, as in an answer that a model has generated.
        """
        label, count = self._template(question).label if self.ignore_label else "", 0
        for end in range(row.start + 1, len(row.ids) + 1) if label else ():
            text = self.decode(row.ids[row.start : end])
            if text == label:  # also with a token of white space after it
                count = end - row.start
            elif not label.startswith(text):
                break
        return replace(row, label=count)

    def prompt(self, question: Question, reply: str = "") -> tuple[int, ...]:
        """Ids of the prompt alone, for generation; `reply`: the beginning of the answer.

        Without those that are masked, which then change no other's position either.
        """
        ids = self._ids(self._template(question), question, reply)
        return tuple(token for token in ids if token != self.padding)

    def _template(self, question: Question) -> Template:
        template = _OPTION if question.answer_index is not None else TEXT
        return (template if question.format == "text" else self.template).of(question)

    def _ids(self, template: Template, question: Question, answer: str = "") -> tuple[int, ...]:
        """Ids of the prompt and `answer` behind it, without an EOS at the end."""
        text = template.prompt(question.question, question.examples)
        # Blanks at the prompt's end are the option's, as in lm-evaluation-harness@4e7e0d4
        # lm_eval/api/model.py, `_encode_pair`: many tokenizers join them with what follows.
        text = text + answer if answer or question.answer_index is None else text.rstrip()
        ids = _encoded(self.tokenizer, text, template.special_tokens)
        # Some tokenizers append EOS themselves; `row` appends it once for all of them.
        return ids[:-1] if ids and ids[-1] == self.eos else ids

    def decode(self, ids: tuple[int, ...]) -> str:
        """Decode answer ids without special tokens and outer white space."""
        return self.untrimmed(ids).strip()

    def untrimmed(self, ids: tuple[int, ...]) -> str:
        """Decode answer ids without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def reference(self, row: Row, question: Question) -> str:
        """Return the text of the true answer, with which generated answers are compared.

        It is the answer as it is written. Rows that stand in the model's template have it as
        decoded from the tokens of the row, because TOFU and open-unlearning decode a whole row and
        take away the prompt (locuslab/tofu@8c49eee:evaluate_util.py, `run_generation`;
        locuslab/open-unlearning@d3d7cf9:src/evals/metrics/utils.py, `eval_text_similarity`). A row
        that was cut has as much of its answer as its tokens hold.
        """
        if question.max_answer_tokens is not None:
            return self._first_tokens(question.answer, question.max_answer_tokens)
        is_written = question.format == "text" or bool(question.prefix)
        if is_written and not row.cut:
            answer = question.answer
            return (question.behind_prefix(answer) if question.prefix else answer).strip()
        template = self._template(question)
        return self._decoded_answer(row, question, template).removeprefix(template.label).strip()

    def _first_tokens(self, answer: str, most: int) -> str:
        """Return the answer's beginning of `most` tokens behind BOS, encoded without its prompt.

        The source of this rule counts BOS as one of `most + 1` tokens, so that a tokenizer without
        BOS has one more: swj0419/muse_bench@fcd6651:metrics/verbmem.py.
        """
        ids = tuple(self.tokenizer(answer)["input_ids"])
        return self.decode(ids[: most + 1])

    def _decoded_answer(self, row: Row, question: Question, template: Template) -> str:
        """Decode the answer of a row, with what one of its tokens shares with the prompt."""
        prompt = self._ids(template, question)
        shared = _shared(prompt, row.ids)
        text = self._answer_text(row.ids[shared:], question)
        if shared == len(prompt):
            return text
        end_of_prompt = self.decode(prompt[shared:])
        if text.startswith(end_of_prompt):
            return text.removeprefix(end_of_prompt).strip()
        # Tokens of parts of a character have no text of their own.
        return self._answer_text(row.ids[row.start :], question) if row.cut else question.answer

    def _answer_text(self, ids: tuple[int, ...], question: Question) -> str:
        """Decode the last ids of a row, without what ends the turn."""
        _, end_ids = self._ending(question)
        # Not every template's turn ends with a token that decoding leaves out.
        ids = ids[:-1] if end_ids and ids[-1:] == end_ids else ids
        text = self.decode(ids)
        # open-unlearning decodes these words with the answer.
        return text if self.eos_as_padding else self.without_end(text, question)

    def without_end(self, text: str, question: Question) -> str:
        """Remove the words that end the turn, such as `### END` in front of EOS, from an answer."""
        end, _ = self._ending(question)
        return text.removesuffix(end.strip()).strip()

    def sampled_text(self, ids: tuple[int, ...], question: Question) -> str:
        """Decode a sampled answer, without what has ended it."""
        # Not every token that ends an answer is one that decoding leaves out.
        has_ended = bool(ids) and ids[-1] in self.stops
        return self.without_end(self.decode(ids[:-1] if has_ended else ids), question)

    def scored_text(self, row: Row, question: Question) -> str:
        """Return the text of a row's scored tokens, without a label of the template.

        It lacks what a token shares with the prompt. `mia-zlib` divides a loss by its size.
        """
        template = self._template(question)
        answer = self._answer_text(row.ids[row.start :], question)
        answer = answer.removeprefix(template.label).strip()
        end = template.end if self.eos_as_padding else ""
        return answer + end[len(end.rstrip()) :]


def _ends_in_blank(question: Question) -> bool:
    """Whether the prompt ends in a blank that many tokenizers join with the answer's first word.

    Only for rows whose prompt is the user's own. In the model's template the tokens of the prompt
    are counted, as TOFU and open-unlearning do.
    """
    if question.prefix:
        return question.prefix.endswith(" ")
    return question.format == "text" and question.question.endswith(" ")


def _shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Return the number of tokens with which both sequences begin."""
    if second[: len(first)] == first:
        return len(first)
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(second))
