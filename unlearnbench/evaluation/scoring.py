"""How probable a model finds each answer, and how much of the true one it would say itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unlearnbench.evaluation.prediction import Predictor
from unlearnbench.evaluation.processes import spread
from unlearnbench.evaluation.result import FloatArray
from unlearnbench.evaluation.tree import Tree


@dataclass(frozen=True, eq=False)
class Scores:
    """One question's rows under the model."""

    losses: tuple[FloatArray, ...]
    """Of each row, the negative log-likelihood of its scored tokens, EOS included, in nats; NaN
    where undefined."""
    said: tuple[int, ...]
    """For each scored token of the first row, the most probable one in its place (or NOT_FINITE).
    """
    tied: tuple[bool, ...]
    """Likewise, whether that hung on less than `prediction.tie_gap`."""


def score(
    predictor: Predictor,
    trees: Sequence[Tree],
    done: Callable[[list[int], list[Scores]], None] | None = None,
) -> list[Scores]:
    """Score all rows of all questions.

    `done` gets the places of questions and their scores as they are there, in this process.
    """
    batches = [*_batches(trees, predictor.batch_tokens)]

    def work(batch: list[int]) -> list[Scores]:
        found = _score_batch(predictor, [trees[i] for i in batch])
        if done is not None:
            done(batch, found)
        return found

    scores: dict[int, Scores] = {}
    for batch, found in zip(batches, spread(batches, work), strict=True):
        scores |= zip(batch, found, strict=True)
    return [scores[i] for i in range(len(trees))]


def _batches(trees: Sequence[Tree], budget: int) -> Iterator[list[int]]:
    """Trees of similar size, largest first, of `budget` tokens together where that is possible."""
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(trees)), key=lambda i: -len(trees[i].ids)):
        if batch and tokens + len(trees[i].ids) > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += len(trees[i].ids)
    if batch:
        yield batch


def _score_batch(predictor: Predictor, trees: Sequence[Tree]) -> list[Scores]:
    offsets = np.cumsum([0, *(len(tree.predicting) for tree in trees)])
    rows = [
        (places + offset, row.ids[row.start :])
        for tree, offset in zip(trees, offsets, strict=False)
        for row, places in zip(tree.rows, tree.places, strict=True)
    ]
    answers = [tree.places[0] + offset for tree, offset in zip(trees, offsets, strict=False)]
    losses, said, tied = predictor.read(
        predictor.tree_states(trees),
        np.concatenate([places for places, _ in rows]),
        np.concatenate([labels for _, labels in rows]),
        np.concatenate(answers),
    )
    each = iter(np.split(losses, np.cumsum([len(places) for places, _ in rows])))
    ends = np.cumsum([0, *map(len, answers)]).tolist()
    return [
        Scores(tuple(next(each) for _ in tree.rows), tuple(said[begin:end]), tuple(tied[begin:end]))
        for tree, begin, end in zip(trees, ends, ends[1:], strict=False)
    ]
