"""What a training epoch draws: the order of its rows, and the partners that go with each."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unlearnbench.data.benchmark import Benchmark, Split
from unlearnbench.data.encoding import Encoder, Row
from unlearnbench.method import Needs, Part


@dataclass(frozen=True)
class Draw:
    """One item of an epoch: a primary row with the partners that go with it."""

    index: int
    retain: int
    refusal: int
    alternative: int = 0


def draw_epoch(
    seed: int, epoch: int, rows: int, retain: int, refusals: int, alternatives: int = 0
) -> list[Draw]:
    """The order of an epoch over `rows` primary rows and their partners, from the seed alone.

    Retain rows come without replacement as long as there are enough. The draw knows nothing of
    batches, processes or methods: every method sees the same rows at the same time.
    """
    order = _stream(seed, epoch, 0).permutation(rows)
    partners = _without_replacement(_stream(seed, epoch, 1), rows, retain)
    answers = _stream(seed, epoch, 2).integers(0, max(refusals, 1), size=rows)
    # Each purpose has its own stream, so that a new one changes no draw of the others.
    others = _stream(seed, epoch, 3).integers(0, max(alternatives, 1), size=rows)
    drawn = zip(order, partners, answers, others, strict=True)
    return [Draw(*map(int, each)) for each in drawn]


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
    """The rows of each part; the first part that a method needs sets the length of an epoch."""

    forget: Sequence[Row] = ()
    retain: Sequence[Row] = ()
    refusals: int = 0
    """Number of refusals that a question can be answered with."""
    refusal: Callable[[int, int], Row] | None = None
    """The row of a forget row's question and a refusal, by their indices."""
    alternatives: Sequence[Sequence[Row]] = ()
    """Rows of each forget row's question with what else the start model answers, equally many."""

    def primary(self, needs: Needs) -> Sequence[Row]:
        """Rows that an epoch passes over once: forget rows, or in fine-tuning the retain rows."""
        return self.forget if needs.parts - {"retain"} else self.retain

    def of(self, part: Part, draws: Sequence[Draw], needs: Needs) -> list[Row]:
        """The rows of `part` for some items of an epoch."""
        if part == "forget":
            return [self.forget[draw.index] for draw in draws]
        if part == "refusal" and self.refusal is not None:
            return [self.refusal(draw.index, draw.refusal) for draw in draws]
        if part == "alternative" and self.alternatives:
            return [self.alternatives[draw.index][draw.alternative] for draw in draws]
        alone = self.primary(needs) is self.retain
        return [self.retain[draw.index if alone else draw.retain] for draw in draws]

    def draws(self, needs: Needs, seed: int, epoch: int) -> list[Draw]:
        """The items of an epoch in order."""
        rows = self.primary(needs)
        alternatives = len(self.alternatives[0]) if self.alternatives else 0
        return draw_epoch(seed, epoch, len(rows), len(self.retain), self.refusals, alternatives)

    def drawn(self, part: Part, needs: Needs, seed: int, epochs: int) -> list[Row]:
        """Every row of `part` that `epochs` epochs will draw."""
        seen: dict[Row, None] = {}
        for epoch in range(1, epochs + 1):
            seen.update(dict.fromkeys(self.of(part, self.draws(needs, seed, epoch), needs)))
        return list(seen)


def with_scores(
    rows: TrainingRows, split: Split, encoder: Encoder, skipped: int, parts: Set[Part]
) -> TrainingRows:
    """`rows` with the scores of those `parts` that come from the data, token by token.

    Raises: DataError for a row without a score or with too many or too few.
    """
    if "forget" in parts:
        forget = [encoder.scored_row(q).without_first(skipped) for q in split.forget]
        rows = replace(rows, forget=forget)
    if "retain" in parts:
        rows = replace(rows, retain=[encoder.scored_row(q) for q in split.retain])
    return rows


def training_rows(
    benchmark: Benchmark, fraction: float, encoder: Encoder, skipped: int
) -> TrainingRows:
    """The rows of a run; `skipped` first answer tokens of forget rows and refusals stay unseen."""
    split = benchmark.splits[fraction]
    known: dict[tuple[int, int], Row] = {}

    def refusal(question: int, answer: int) -> Row:
        key = (question, answer)
        if key not in known:
            text = benchmark.refusals[answer]
            row = encoder.row(split.forget[question].question, text)
            known[key] = row.without_first(skipped)
        return known[key]

    return TrainingRows(
        forget=[encoder.row(q.question, q.answer).without_first(skipped) for q in split.forget],
        retain=[encoder.row(q.question, q.answer) for q in split.retain],
        refusals=len(benchmark.refusals),
        refusal=refusal,
    )
