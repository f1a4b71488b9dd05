"""The order of rows in an epoch, and the partner rows of each, drawn from the seed.

An epoch has each primary row once: each forget row, or in fine-tuning each retain row. A primary
row and its partners are an `Item`. A method asks for parts of a batch of items, for example for the
retain rows that are the partners of some forget rows.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from unlearnbench.api.benchmark import Dataset, Question, Split, SplitKey
from unlearnbench.api.method import Needs, Part
from unlearnbench.models.control_text import ControlText
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.token_row import Row


@dataclass(frozen=True)
class Item:
    """One item of an epoch: the indices of a primary row and of its partners."""

    index: int
    """Index of the primary row."""
    retain: int
    """Index of the retain row."""
    refusal: int
    """Index of the refusal."""
    alternative: int = 0
    """Index of the start model's answer among those to the same question."""


class _Purpose(IntEnum):
    """What random numbers are drawn for.

    Each purpose has its own stream, so that a new one changes no draw of the others.
    """

    ORDER = 0
    RETAIN = 1
    REFUSAL = 2
    ALTERNATIVE = 3


def draw_epoch(
    seed: int, epoch: int, rows: int, retain: int, refusals: int, alternatives: int = 0
) -> list[Item]:
    """Draw the order of the primary rows and their partners.

    The draws depend on the seed and the epoch, and not on batches, processes or methods: every
    method sees the same rows at the same time. Retain rows are drawn without replacement while
    there are enough.

    Args:
        seed: The seed of the run.
        epoch: Number of the epoch.
        rows: Number of primary rows.
        retain: Number of retain rows.
        refusals: Number of refusals.
        alternatives: Number of the start model's answers to each question.
    """
    order = _stream(seed, epoch, _Purpose.ORDER).permutation(rows)
    retain_rows = _without_replacement(_stream(seed, epoch, _Purpose.RETAIN), rows, retain)
    refused = _stream(seed, epoch, _Purpose.REFUSAL).integers(0, max(refusals, 1), size=rows)
    answers = _stream(seed, epoch, _Purpose.ALTERNATIVE).integers(
        0, max(alternatives, 1), size=rows
    )
    drawn = zip(order, retain_rows, refused, answers, strict=True)
    return [Item(*map(int, indices)) for indices in drawn]


def _stream(seed: int, epoch: int, purpose: _Purpose) -> np.random.Generator:
    return np.random.default_rng([seed, epoch, int(purpose)])


def _without_replacement(
    stream: np.random.Generator, count: int, population: int
) -> NDArray[np.int64]:
    """Draw `count` indices. No index comes a second time before all have come once.

    Without a population, all indices are 0, and nobody reads them.
    """
    if population == 0:
        return np.zeros(count, dtype=np.int64)
    rounds = -(-count // population)
    return np.concatenate([stream.permutation(population) for _ in range(rounds)])[:count]


@dataclass(frozen=True)
class TrainingRows:
    """The rows of each part. The primary rows set the length of an epoch."""

    forget: Sequence[Row] = ()
    retain: Sequence[Row] = ()
    refusals: int = 0
    """Number of refusals that a question can be answered with."""
    refusal: Callable[[int, int], Row] | None = None
    """Returns the row of a forget row's question and a refusal, given their indices."""
    alternatives: Sequence[Sequence[Row]] = ()
    """For each forget row, rows of its question with answers of the start model, equally many."""
    retain_refusal: Callable[[int, int], Row] | None = None
    """Returns the row of a retain row's question and a refusal, given their indices."""
    text: tuple[int, ...] = ()
    """Tokens of the text that the method needs."""
    prompted: Sequence[Sequence[Row]] = ()
    """For each of the prompts that the method needs, the forget rows' answers after that prompt."""
    prompt_ends: Sequence[Sequence[Row]] = ()
    """Prompts of the questions that the method needs, and prompts of the forget rows. Each is
    followed by one token, which is predicted at the prompt's end."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row among those that exist in advance. Refusals do not."""
        rows = [*self.forget, *self.retain]
        for group in (*self.alternatives, *self.prompted, *self.prompt_ends):
            rows += group
        return max((len(row.ids) for row in rows), default=0)

    def primary(self, needs: Needs) -> Sequence[Row]:
        """Return the rows that an epoch has once: forget rows, or in fine-tuning retain rows."""
        return self.forget if needs.parts - {"retain"} else self.retain

    def of(self, part: Part | int, draws: Sequence[Item], needs: Needs) -> list[Row]:
        """Return the rows of a part for some items of an epoch.

        Args:
            part: The part, or the number of one of the method's prompts.
            draws: The items.
            needs: What the method needs, which decides which rows are primary.

        Raises:
            LookupError: There are no rows of this part.
        """
        if isinstance(part, int):
            return [self.prompted[part][draw.index] for draw in draws]
        if part == "forget":
            return [self.forget[draw.index] for draw in draws]
        if part == "whole":
            return [self.forget[draw.index].whole for draw in draws]
        if part == "refusal" and self.refusal is not None:
            return [self.refusal(draw.index, draw.refusal) for draw in draws]
        if part == "retain_refusal" and self.retain_refusal is not None:
            return [self.retain_refusal(draw.retain, draw.refusal) for draw in draws]
        if part == "alternative" and self.alternatives:
            return [self.alternatives[draw.index][draw.alternative] for draw in draws]
        if part != "retain":
            raise LookupError(f"there are no rows of the part {part!r}")
        if self.primary(needs) is self.retain:
            return [self.retain[draw.index] for draw in draws]
        return [self.retain[draw.retain] for draw in draws]

    def items(self, needs: Needs, seed: int, epoch: int) -> list[Item]:
        """Return the items of an epoch in order."""
        rows = self.primary(needs)
        alternatives = len(self.alternatives[0]) if self.alternatives else 0
        return draw_epoch(seed, epoch, len(rows), len(self.retain), self.refusals, alternatives)

    def rows_of_epochs(self, part: Part | int, needs: Needs, seed: int, epochs: int) -> list[Row]:
        """Return the distinct rows of a part in the first `epochs` epochs, in order."""
        distinct: dict[Row, None] = {}
        for epoch in range(1, epochs + 1):
            rows = self.of(part, self.items(needs, seed, epoch), needs)
            distinct.update(dict.fromkeys(rows))
        return list(distinct)


def with_scores(
    rows: TrainingRows, split: Split, encoder: Encoder, skipped: int, parts: Set[Part]
) -> TrainingRows:
    """Add the scores of the data, token by token, to the rows of `parts`.

    Args:
        rows: The encoded rows.
        split: The rows of the data, in the same order.
        encoder: The encoder of the rows.
        skipped: Number of first answer tokens of forget rows that the loss ignores.
        parts: The parts whose scores the method reads.

    Raises:
        DataError: A row has no score, or a wrong number of them.
    """
    if "forget" in parts:
        forget = [encoder.scored_row(question).without_first(skipped) for question in split.forget]
        rows = replace(rows, forget=forget)
    if "retain" in parts:
        retain = [encoder.scored_row(question) for question in split.retain]
        rows = replace(rows, retain=retain)
    return rows


def prompted_rows(
    rows: Sequence[Row], questions: Sequence[Question], prompt: str, encoder: Encoder
) -> list[Row]:
    """Return rows with another prompt, and the same tokens after it.

    Args:
        rows: Rows with their own prompts.
        questions: The questions of the rows.
        prompt: The other prompt, a text with `{question}` in it.
        encoder: The encoder of the rows.
    """
    # The ids of a row have all tokens of its prompt, also those that `Encoder.prompt` leaves out
    # because they are masked.
    whole_encoder = replace(encoder, eos_as_padding=False)
    prompted: list[Row] = []
    for row, question in zip(rows, questions, strict=True):
        text = prompt.replace("{question}", question.question)
        old_prompt = whole_encoder.prompt(question)
        new_prompt = encoder.prompt(replace(question, question=text))
        shift = len(new_prompt) - len(old_prompt)
        masked = tuple(index + shift for index in row.masked if index >= len(old_prompt))
        ids = (*new_prompt, *row.ids[len(old_prompt) :])
        prompted.append(Row(ids, row.start + shift, masked=masked))
    return prompted


def with_needed(
    rows: TrainingRows, questions: Sequence[Question], needs: Needs, encoder: Encoder
) -> TrainingRows:
    """Add the tokens and rows that a method needs.

    Args:
        rows: The encoded rows.
        questions: The questions of the forget rows.
        needs: What the method needs.
        encoder: The encoder of the rows.
    """
    prompt_ends: list[list[Row]] = []
    if needs.questions:
        own_questions = [Question(text, "") for text in needs.questions]
        prompt_ends = [_prompt_ends(own_questions, encoder), _prompt_ends(questions, encoder)]
    return replace(
        rows,
        text=encoder.text(needs.text),
        prompted=[
            prompted_rows(rows.forget, questions, prompt, encoder) for prompt in needs.prompts
        ],
        prompt_ends=prompt_ends,
    )


def _prompt_ends(questions: Sequence[Question], encoder: Encoder) -> list[Row]:
    """Return the prompts of questions, each with one token that is predicted at its end."""
    prompts = [encoder.prompt(question) for question in questions]
    return [Row((*prompt, encoder.eos), len(prompt)) for prompt in prompts]


def training_rows(
    benchmark: Dataset, fraction: SplitKey, encoder: Encoder, skipped: int
) -> TrainingRows:
    """Encode the rows of a run.

    Args:
        benchmark: The rows of the data.
        fraction: The split of the run.
        encoder: The encoder of the rows.
        skipped: Number of first answer tokens of forget rows, and of refusals to them, that the
            loss ignores.

    Raises:
        DataError: An answer consists only of control tokens.
    """
    split = benchmark.splits[fraction]
    control = ControlText.of(encoder.tokenizer)
    for question in (*split.forget, *split.retain):
        control.check_answers(question)

    # Most pairs of a question and a refusal are never drawn, so their rows are made on demand.
    def refusals_to(questions: Sequence[Question], skipped: int) -> Callable[[int, int], Row]:
        @cache
        def refusal_row(question_index: int, refusal_index: int) -> Row:
            question = questions[question_index]
            refusal = question.continuation(benchmark.refusals[refusal_index])
            return encoder.row(question, refusal).without_first(skipped)

        return refusal_row

    return TrainingRows(
        forget=[encoder.row(question).without_first(skipped) for question in split.forget],
        retain=[encoder.row(question) for question in split.retain],
        refusals=len(benchmark.refusals),
        refusal=refusals_to(split.forget, skipped),
        retain_refusal=refusals_to(split.retain, 0),
    )
