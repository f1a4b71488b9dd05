"""Losses of every answer under a model, and the greedy tokens in place of the true answer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, IntArray
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import Tree
from unlearnbench.runtime.out_of_memory import map_over_ranks

_NONE: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class QuestionScores:
    """One question's rows under the model."""

    losses: tuple[FloatArray, ...]
    """For each row, the negative log-likelihood of its scored tokens, EOS included, in nats; NaN
    where undefined."""
    argmax_tokens: tuple[int, ...]
    """The most probable token in place of each scored token of the first row, or NOT_FINITE."""
    tied: tuple[bool, ...]
    """For each of these, True if another was nearer than `predictor.tie_gap`."""
    moments: FloatArray | None
    """[T, 2] mean and variance of the log-probability in these places; None where not wanted."""
    observed: FloatArray
    """[T, O] what each observation gives there."""


def score(
    predictor: Predictor,
    trees: Sequence[Tree],
    count: Callable[[int], None] = lambda _: None,
    moments: Sequence[bool] = (),
    observations: Sequence[Observation] = (),
) -> list[QuestionScores]:
    """Score all rows of all questions.

    count         called with the number of questions that this process has scored
    moments       for each question, whether those of its first row are wanted; default: of none
    observations  made of the tokens of every first row
    """
    batches = [*_batches(trees, predictor.batch_tokens)]

    def score_batch(batch: list[int]) -> list[QuestionScores]:
        wanted = [moments[i] if moments else False for i in batch]
        found = _score_batch(predictor, [trees[i] for i in batch], wanted, observations)
        count(len(batch))
        return found

    scores: dict[int, QuestionScores] = {}
    for batch, found in zip(batches, map_over_ranks(score_batch, batches), strict=True):
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


def _score_batch(
    predictor: Predictor,
    trees: Sequence[Tree],
    moments: Sequence[bool],
    observations: Sequence[Observation],
) -> list[QuestionScores]:
    offsets = np.cumsum([0, *(len(tree.predicting) for tree in trees)])
    rows = [
        (places + offset, row.ids[row.start :])
        for tree, offset in zip(trees, offsets, strict=False)
        for row, places in zip(tree.rows, tree.places, strict=True)
    ]
    answers = [tree.places[0] + offset for tree, offset in zip(trees, offsets, strict=False)]
    wanted = [places for places, is_wanted in zip(answers, moments, strict=True) if is_wanted]
    labels = [np.array(tree.rows[0].ids[tree.rows[0].start :]) for tree in trees]
    losses, argmax, tied, found, observed = predictor.score_positions(
        predictor.tree_states(trees),
        np.concatenate([places for places, _ in rows]),
        np.concatenate([labels for _, labels in rows]),
        np.concatenate(answers),
        np.concatenate([_NONE, *wanted]),
        observations,
        np.concatenate(labels) if observations else _NONE,
    )
    by_row = iter(np.split(losses, np.cumsum([len(places) for places, _ in rows])))
    by_answer = iter(np.split(found, np.cumsum([*map(len, wanted)])))
    ends = np.cumsum([0, *map(len, answers)]).tolist()
    return [
        QuestionScores(
            losses=tuple(next(by_row) for _ in tree.rows),
            argmax_tokens=tuple(argmax[begin:end]),
            tied=tuple(tied[begin:end]),
            moments=next(by_answer) if is_wanted else None,
            observed=observed[begin:end],
        )
        for tree, is_wanted, begin, end in zip(trees, moments, ends, ends[1:], strict=False)
    ]
