"""The order of rows in an epoch, and the partner rows of each, drawn from the seed."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
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
    retain: int
    refusal: int
    alternative: int = 0


def draw_epoch(
    seed: int, epoch: int, rows: int, retain: int, refusals: int, alternatives: int = 0
) -> list[Item]:
    """Draw the order of `rows` primary rows and their partners from the seed alone.

    Retain rows are drawn without replacement while there are enough. The order does not depend on
    batches, processes or methods: every method sees the same rows at the same time.
    """
    order = _stream(seed, epoch, 0).permutation(rows)
    partners = _without_replacement(_stream(seed, epoch, 1), rows, retain)
    answers = _stream(seed, epoch, 2).integers(0, max(refusals, 1), size=rows)
    # Each purpose has its own stream, so that a new one changes no draw of the others.
    others = _stream(seed, epoch, 3).integers(0, max(alternatives, 1), size=rows)
    drawn = zip(order, partners, answers, others, strict=True)
    return [Item(*map(int, each)) for each in drawn]


def _stream(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch, purpose])


def _without_replacement(
    stream: np.random.Generator, count: int, population: int
) -> NDArray[np.int64]:
    if population == 0:
        return np.zeros(count, dtype=np.int64)
    rounds = -(-count // population)
    return np.concatenate([stream.permutation(population) for _ in range(rounds)])[:count]


@dataclass(frozen=True)
class TrainingRows:
    """The rows of each part; the primary ones set the length of an epoch."""

    forget: Sequence[Row] = ()
    retain: Sequence[Row] = ()
    refusals: int = 0
    """Number of refusals that a question can be answered with."""
    refusal: Callable[[int, int], Row] | None = None
    """The row of a forget row's question and a refusal, by their indices."""
    alternatives: Sequence[Sequence[Row]] = ()
    """Rows of each forget row's question with other answers of the start model, equally many."""
    retain_refusal: Callable[[int, int], Row] | None = None
    """The row of a retain row's question and a refusal, by their indices."""
    text: tuple[int, ...] = ()
    """Tokens of the text that the method needs."""
    prompted: Sequence[Sequence[Row]] = ()
    """The forget rows' answers behind each of the prompts that the method needs."""
    prompt_ends: Sequence[Sequence[Row]] = ()
    """Of the questions that the method needs, and of the forget rows: prompts with one token each,
    which is predicted at their end."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row among those that exist in advance. Refusals do not."""
        rows = [*self.forget, *self.retain]
        for others in (*self.alternatives, *self.prompted, *self.prompt_ends):
            rows += others
        return max((len(row.ids) for row in rows), default=0)

    def primary(self, needs: Needs) -> Sequence[Row]:
        """The rows that an epoch has once: forget rows, or in fine-tuning the retain rows."""
        return self.forget if needs.parts - {"retain"} else self.retain

    def of(self, part: Part | int, draws: Sequence[Item], needs: Needs) -> list[Row]:
        """The rows of `part`, or of a prompt by its number, for some items of an epoch."""
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
        alone = self.primary(needs) is self.retain
        return [self.retain[draw.index if alone else draw.retain] for draw in draws]

    def items(self, needs: Needs, seed: int, epoch: int) -> list[Item]:
        """The items of an epoch in order."""
        rows = self.primary(needs)
        alternatives = len(self.alternatives[0]) if self.alternatives else 0
        return draw_epoch(seed, epoch, len(rows), len(self.retain), self.refusals, alternatives)

    def rows_of_epochs(self, part: Part | int, needs: Needs, seed: int, epochs: int) -> list[Row]:
        """The distinct rows of `part` in the first `epochs` epochs."""
        seen: dict[Row, None] = {}
        for epoch in range(1, epochs + 1):
            seen.update(dict.fromkeys(self.of(part, self.items(needs, seed, epoch), needs)))
        return list(seen)


def with_scores(
    rows: TrainingRows, split: Split, encoder: Encoder, skipped: int, parts: Set[Part]
) -> TrainingRows:
    """Add the scores of the data, token by token, to the rows of `parts`.

    Raises: DataError for a row without a score or with a wrong number of them.
    """
    if "forget" in parts:
        forget = [encoder.scored_row(q).without_first(skipped) for q in split.forget]
        rows = replace(rows, forget=forget)
    if "retain" in parts:
        rows = replace(rows, retain=[encoder.scored_row(q) for q in split.retain])
    return rows


def prompted_rows(
    rows: Sequence[Row], questions: Sequence[Question], prompt: str, encoder: Encoder
) -> list[Row]:
    """Rows with another prompt, token for token the same behind it.

    prompt  with `{question}`
    """
    result: list[Row] = []
    for row, question in zip(rows, questions, strict=True):
        text = prompt.replace("{question}", question.question)
        # All of the tokens before the answer, which `row.ids` has, also those that are masked.
        old = replace(encoder, eos_as_padding=False).prompt(question)
        new = encoder.prompt(replace(question, question=text))
        more = len(new) - len(old)
        masked = tuple(i + more for i in row.masked if i >= len(old))
        ids = (*new, *row.ids[len(old) :])
        result.append(Row(ids, row.start + more, masked=masked))
    return result


def with_needed(
    rows: TrainingRows, questions: Sequence[Question], needs: Needs, encoder: Encoder
) -> TrainingRows:
    """Add the tokens and rows that `needs` names, given the forget rows' `questions`."""
    others = [Question(text, "") for text in needs.questions]
    groups = (others, questions) if others else ()
    return replace(
        rows,
        text=encoder.text(needs.text),
        prompted=[prompted_rows(rows.forget, questions, p, encoder) for p in needs.prompts],
        prompt_ends=[
            [Row((*ids, encoder.eos), len(ids)) for ids in map(encoder.prompt, group)]
            for group in groups
        ],
    )


def training_rows(
    benchmark: Dataset, fraction: SplitKey, encoder: Encoder, skipped: int
) -> TrainingRows:
    """Encode the rows of a run; the loss ignores `skipped` first tokens of forget answers."""
    split = benchmark.splits[fraction]
    control = ControlText.of(encoder.tokenizer)
    for question in (*split.forget, *split.retain):
        control.check_answers(question)

    def refused(questions: Sequence[Question], skipped: int) -> Callable[[int, int], Row]:
        @cache
        def refusal(question: int, answer: int) -> Row:
            row = questions[question]
            text = row.continuation(benchmark.refusals[answer])
            return encoder.row(row, text).without_first(skipped)

        return refusal

    return TrainingRows(
        forget=[encoder.row(question).without_first(skipped) for question in split.forget],
        retain=[encoder.row(question) for question in split.retain],
        refusals=len(benchmark.refusals),
        refusal=refused(split.forget, skipped),
        retain_refusal=refused(split.retain, 0),
    )
