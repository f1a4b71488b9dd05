"""Encode questions with their answers as rows of tokens, of which the answers are scored.

A row has the tokens of the prompt, of the answer, and of what ends the turn. The boundary between
prompt and answer follows three rules:

- As many tokens as the prompt has by itself are not scored, as in TOFU, open-unlearning and
  lm-evaluation-harness. A token that merges the prompt's end with the answer's beginning, such as
  Llama-2's `]"`, is therefore not scored.
- There is one exception: a blank at the end of a prompt that a row brings along. Many tokenizers
  join this blank with the answer's first word, which is scored, as lm-evaluation-harness scores an
  option after such a blank.
- What ends the turn is appended and scored: EOS, or what the model's chat template writes there,
  such as Gemma's `<end_of_turn>`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import DataError, ModelError
from unlearnbench.base.row_texts import row_text
from unlearnbench.models.templates import OPTION, TEXT, Template
from unlearnbench.models.token_row import Row


class _Ending(NamedTuple):
    """What ends an answer."""

    text: str
    """Text in front of the token, which is encoded together with the answer."""
    token: tuple[int, ...]
    """Id of the token after the text; without ids if only text ends the answer."""


_NO_ENDING = _Ending("", ())


class _Text(NamedTuple):
    """A text as it is given to the tokenizer."""

    text: str
    special_tokens: bool
    """Whether the tokenizer adds its special tokens."""


# A question's prompt is encoded again for each of its answers. The two entries are the prompt and
# the prompt with the latest answer.
@lru_cache(maxsize=2)
def _encoded(tokenizer: Any, text: _Text) -> tuple[int, ...]:
    return tuple(tokenizer(text.text, add_special_tokens=text.special_tokens)["input_ids"])


def _all_encoded(tokenizer: Any, texts: Iterable[_Text]) -> dict[_Text, tuple[int, ...]]:
    """Encode texts in at most two calls of the tokenizer: without special tokens, and with them."""
    distinct_texts = dict.fromkeys(texts)
    ids_of_text: dict[_Text, tuple[int, ...]] = {}
    for special_tokens in (False, True):
        chosen = [text for text in distinct_texts if text.special_tokens is special_tokens]
        if not chosen:
            continue
        encoded = tokenizer(
            [text.text for text in chosen],
            add_special_tokens=special_tokens,
            # Nobody reads it, and to make it takes a tenth of the time.
            return_attention_mask=False,
        )
        ids_of_text |= zip(chosen, map(tuple, encoded["input_ids"]), strict=True)
    return ids_of_text


def check_scored(row: Question) -> None:
    """Raise DataError if a row has no score."""
    if row.score is None:
        where = row.place or "the generated benchmark"
        raise DataError(
            f"{where}: no column 'score', which a method reads from every such row; add a number "
            f"from 0 (unlearn) to 1 (learn), or set the method's scores to constant"
        )


@dataclass(frozen=True)
class Encoder:
    """A tokenizer and a template, which make rows of tokens from questions."""

    tokenizer: Any
    template: Template
    max_length: int
    """Largest number of tokens of a row. A longer row is cut, and then has no EOS."""
    eos_after_cut: bool = False
    """Whether a row that was cut also ends with an EOS, which is then beyond `max_length`."""
    ignore_label: bool = True
    """Whether rows mark the template's label, so that `Row.without_first` ignores it, too."""
    further_stops: frozenset[int] = frozenset()
    """Ids of `generation_config.eos_token_id` of the model whose answers are sampled."""
    eos_as_padding: bool = False
    """Whether rows are encoded as in open-unlearning: the id of padding (EOS, if the tokenizer has
    no padding of its own) is masked inside texts, too. What a chat template writes after an answer
    is scored, with one more EOS."""
    ahead: Mapping[_Text, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Ids of texts that are encoded already, see `encode_ahead`."""

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no EOS token, which ends every answer; set one")

    # What ends an answer, and what is masked

    @cached_property
    def eos(self) -> int:
        """Id of the tokenizer's EOS, which ends an answer if the template names nothing else."""
        return int(self.tokenizer.eos_token_id)

    @cached_property
    def _template_ending(self) -> _Ending:
        """What ends an answer in the model's template."""
        if self.eos_as_padding:
            return _Ending(self.template.end, (self.eos,))
        turn_end = self.template.turn_end
        if turn_end is None:
            return _Ending("", (self.eos,))
        if not turn_end.token:
            return _Ending(turn_end.text, ())
        token = int(self.tokenizer.convert_tokens_to_ids(turn_end.token))
        return _Ending(turn_end.text, (token,))

    def _ending(self, question: Question) -> _Ending:
        """Return what ends the answer to a question. Plain text ends with EOS."""
        return _Ending("", (self.eos,)) if question.format == "text" else self._template_ending

    def end_ids(self, question: Question) -> tuple[int, ...]:
        """Return the token that ends an answer; EOS if plain text ends it."""
        return self._ending(question).token or (self.eos,)

    @property
    def end_text(self) -> str:
        """Text that ends an answer if no token does; empty if a token does."""
        ending = self._template_ending
        return "" if ending.token else ending.text.strip()

    @cached_property
    def stops(self) -> frozenset[int]:
        """Ids of the tokens at which an answer is over."""
        return frozenset((self.eos, *self._template_ending.token)) | self.further_stops

    @cached_property
    def padding(self) -> int | None:
        """Id that is masked wherever it stands; None if no id is."""
        if not self.eos_as_padding:
            return None
        pad = self.tokenizer.pad_token_id
        return self.eos if pad is None else int(pad)

    # Rows

    def encode_ahead(self, questions: Iterable[Question]) -> Encoder:
        """Return an encoder that makes the same rows, and those of `questions` faster.

        It encodes all texts of their prompts and scored answers in one or two calls of the
        tokenizer. Each call takes some time whatever its texts are, and a fast tokenizer divides
        the texts of a call between the processor's cores.
        """
        texts = (text for question in questions for text in self._texts(question))
        return replace(self, ahead=_all_encoded(self.tokenizer, texts))

    def _texts(self, question: Question) -> Iterator[_Text]:
        """Yield what `row` encodes for a question: the prompt, and each scored answer after it."""
        template = self._template(question)
        yield self._text(template, question)
        is_option = question.answer_index is not None
        ending = "" if is_option else self._ending(question).text
        for answer in question.scored_answers:
            yield self._text(template, question, self._answer(template, question, answer) + ending)

    def row(self, question: Question, answer: str | None = None) -> Row:
        """Encode a question with an answer. Plain text has no question.

        Args:
            question: The question.
            answer: Another answer than the question's own. It may repeat the beginning of an
                answer that is given in the prompt (`Question.prefix`).

        Raises:
            ModelError: The prompt fills the row.
        """
        template = self._template(question)
        answer_text = self._answer(template, question, answer)
        prompt = self._ids(template, question)
        if question.answer_index is None:
            row = self._answer_row(question, template, prompt, answer_text)
        else:
            row = self._option_row(question, template, prompt, answer_text)
        return self.labelled(row, question)

    def _answer(self, template: Template, question: Question, answer: str | None) -> str:
        """Return the text of an answer, as the template writes it behind the prompt."""
        text = question.answer if answer is None else answer
        if question.prefix:
            text = question.behind_prefix(text)
        return template.answer(text)

    def _answer_row(
        self, question: Question, template: Template, prompt: tuple[int, ...], answer: str
    ) -> Row:
        """Encode an answer with what ends it. A row that is too long loses its end.

        Args:
            question: The question.
            template: Its template.
            prompt: Ids of the prompt by itself.
            answer: Text of the answer, as the template writes it.
        """
        ending = self._ending(question)
        whole = self._ids(template, question, answer + ending.text)
        start = len(prompt)
        begins_with_word = not answer[:1].isspace()
        if begins_with_word and _ends_in_blank(question):
            # A token of that blank and the answer's first word counts as the answer's.
            start = _shared_length(prompt, whole)
        limit = self._limit(question, start)
        ids = (*whole[:limit], *ending.token)
        if not self.eos_after_cut:
            ids = ids[:limit]
        start = self._checked_start(question, start, ids, limit)

        is_uncut = len(whole) <= limit
        has_end = ids[-1:] == ending.token if ending.token else is_uncut
        end_tokens = int(has_end)
        if ending.text and has_end and is_uncut and not self.eos_as_padding:
            without_ending = self._ids(template, question, answer)
            added = len(whole) + len(ending.token) - len(without_ending)
            end_tokens = max(added, 1)  # the text may merge with the answer's last token
        # An answer that ends at `Question.max_answer_tokens` is whole by the rules of its row.
        is_cut = len(whole) + len(ending.token) > self.max_length
        return Row(ids, start, masked=self._masked(ids), cut=is_cut, end_tokens=end_tokens)

    def _option_row(
        self, question: Question, template: Template, prompt: tuple[int, ...], option: str
    ) -> Row:
        """Encode an option of a multiple choice, which nothing ends.

        A row that is too long loses its beginning.

        Args:
            question: The question.
            template: Its template.
            prompt: Ids of the prompt by itself.
            option: Text of the option, as the template writes it.
        """
        whole = self._ids(template, question, option)
        limit = self._limit(question, len(prompt))
        ids = whole[-limit:]
        removed = max(len(whole) - limit, 0)
        start = self._checked_start(question, len(prompt) - removed, ids, limit)
        is_cut = len(whole) > self.max_length
        return Row(ids, start, masked=self._masked(ids), cut=is_cut)

    def _limit(self, question: Question, start: int) -> int:
        """Return the largest number of tokens of a row whose answer begins at `start`."""
        if question.max_answer_tokens is None:
            return self.max_length
        return min(self.max_length, start + question.max_answer_tokens)

    def _checked_start(
        self, question: Question, start: int, ids: tuple[int, ...], limit: int
    ) -> int:
        """Return the index of the first scored token.

        Raises:
            ModelError: There is no scored token.
        """
        start = max(start, 1)  # nothing predicts the first token of a sequence
        if start >= len(ids):
            raise ModelError(
                f"no answer token fits into {limit} tokens after a prompt of {start}: "
                f"{question.place or row_text(question.question[:60])}; raise max_length"
            )
        return start

    def _masked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the indices of padding. The last token predicts nothing, so it is never masked."""
        if self.padding is None:
            return ()
        return tuple(i for i, token in enumerate(ids[:-1]) if token == self.padding)

    @property
    def _without_limit(self) -> Encoder:
        return replace(self, max_length=sys.maxsize)

    def scored_row(self, row: Question) -> Row:
        """Encode a row of the data with its score by token.

        Raises:
            ModelError: The prompt fills the row.
            DataError: There is no score, or there are several but not one for each token of the
                answer.
        """
        check_scored(row)
        encoded = self.row(row)
        if not isinstance(row.score, tuple):
            return replace(encoded, scores=(float(row.score or 0),) * encoded.scored)
        answer_tokens = self._without_limit.row(row).scored
        if len(row.score) != answer_tokens:
            raise DataError(
                f"{row.place}: column 'score' has {len(row.score)} numbers, and the answer has "
                f"{answer_tokens} tokens as this model's tokenizer reads it, the one that ends it "
                f"included; give one number for each of them, or one for the whole answer"
            )
        return replace(encoded, scores=row.score[: encoded.scored])

    def length(self, question: Question) -> int:
        """Return the number of tokens of a question with its answer, before it is cut."""
        return len(self._without_limit.row(question).ids)

    def labelled(self, row: Row, question: Question) -> Row:
        """Add the number of tokens of the template's label that the answer begins with.

        The number is 0 if the label is incomplete, as in an answer that a model has generated.
        """
        label = self._template(question).label if self.ignore_label else ""
        return replace(row, label=self._label_tokens(row, label) if label else 0)

    def _label_tokens(self, row: Row, label: str) -> int:
        """Return the number of tokens at the beginning of the answer that are a label's text."""
        count = 0
        for end in range(row.start + 1, len(row.ids) + 1):
            text = self.decode(row.ids[row.start : end])
            if text == label:
                # The loop goes on, because white space after the label counts as label, too.
                count = end - row.start
            elif not label.startswith(text):
                break
        return count

    # Prompts and texts as ids

    def prompt(self, question: Question, reply: str = "") -> tuple[int, ...]:
        """Return the ids of the prompt for generation.

        Masked ids are left out, because transformers' `generate` does not count them as positions.

        Args:
            question: The question.
            reply: The beginning of the answer.
        """
        ids = self._ids(self._template(question), question, reply)
        return tuple(token for token in ids if token != self.padding)

    def text(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text, without special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _template(self, question: Question) -> Template:
        """Return the template of a question, with what the row itself adds to it."""
        if question.format != "text":
            return self.template.of(question)
        is_option = question.answer_index is not None
        return (OPTION if is_option else TEXT).of(question)

    def _ids(self, template: Template, question: Question, answer: str = "") -> tuple[int, ...]:
        """Return the ids of the prompt and an answer after it, without an EOS at the end."""
        text = self._text(template, question, answer)
        ids = self.ahead.get(text)
        if ids is None:
            ids = _encoded(self.tokenizer, text)
        # Some tokenizers append EOS themselves. `row` appends it once for all of them.
        return ids[:-1] if ids and ids[-1] == self.eos else ids

    def _text(self, template: Template, question: Question, answer: str = "") -> _Text:
        """Return the text of the prompt and an answer after it."""
        text = template.prompt(question.question, question.examples) + answer
        if not answer and question.answer_index is not None:
            # Blanks at the prompt's end belong to the option, because many tokenizers join them
            # with what follows: lm-evaluation-harness@4e7e0d4:lm_eval/api/model.py, `_encode_pair`.
            text = text.rstrip()
        return _Text(text, template.special_tokens)

    # Texts of answers

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

    def _first_tokens(self, answer: str, count: int) -> str:
        """Return the answer's beginning of `count` tokens after BOS, encoded without its prompt.

        The source of this rule counts BOS as one of `count + 1` tokens, so that a tokenizer without
        BOS has one more: swj0419/muse_bench@fcd6651:metrics/verbmem.py.
        """
        ids = tuple(self.tokenizer(answer)["input_ids"])
        return self.decode(ids[: count + 1])

    def _decoded_answer(self, row: Row, question: Question, template: Template) -> str:
        """Decode the answer of a row, including a token that it shares with the prompt."""
        prompt = self._ids(template, question)
        shared = _shared_length(prompt, row.ids)
        text = self._answer_text(row.ids[shared:], question)
        if shared == len(prompt):
            return text
        end_of_prompt = self.decode(prompt[shared:])
        if text.startswith(end_of_prompt):
            return text.removeprefix(end_of_prompt).strip()
        # A token that holds only a part of a character has no text of its own.
        return self._answer_text(row.ids[row.start :], question) if row.cut else question.answer

    def _answer_text(self, ids: tuple[int, ...], question: Question) -> str:
        """Decode the last ids of a row, without what ends the turn."""
        end = self._ending(question).token
        # Not every template's turn ends with a token that decoding leaves out.
        if end and ids[-1:] == end:
            ids = ids[:-1]
        text = self.decode(ids)
        # open-unlearning decodes the words that end a turn together with the answer.
        return text if self.eos_as_padding else self.without_end(text, question)

    def without_end(self, text: str, question: Question) -> str:
        """Remove the words that end the turn, such as `### END` in front of EOS, from an answer."""
        return text.removesuffix(self._ending(question).text.strip()).strip()

    def sampled_text(self, ids: tuple[int, ...], question: Question) -> str:
        """Decode a sampled answer, without what has ended it."""
        # Not every token that ends an answer is one that decoding leaves out.
        has_ended = bool(ids) and ids[-1] in self.stops
        return self.without_end(self.decode(ids[:-1] if has_ended else ids), question)

    def scored_text(self, row: Row, question: Question) -> str:
        """Return the text of a row's scored tokens, without a label of the template.

        The text lacks what a token shares with the prompt. `mia-zlib` divides a loss by its size.
        """
        template = self._template(question)
        answer = self._answer_text(row.ids[row.start :], question)
        answer = answer.removeprefix(template.label).strip()
        end = template.end if self.eos_as_padding else ""
        trailing_blanks = end[len(end.rstrip()) :]
        return answer + trailing_blanks


def _ends_in_blank(question: Question) -> bool:
    """Whether the prompt ends in a blank that many tokenizers join with the answer's first word.

    This concerns only rows whose prompt is the user's own. In the model's template the tokens of
    the prompt are counted, as in TOFU and open-unlearning.
    """
    if question.prefix:
        return question.prefix.endswith(" ")
    return question.format == "text" and question.question.endswith(" ")


def _shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Return the number of tokens with which both sequences begin."""
    if second[: len(first)] == first:
        return len(first)
    for index, (token, other) in enumerate(zip(first, second, strict=False)):
        if token != other:
            return index
    return len(second)
