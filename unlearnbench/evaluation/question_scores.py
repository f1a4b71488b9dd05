"""Scores of questions: the losses of their answers under a model, and its most probable tokens.

Scoring also verifies the true answer as a draft of the generated one, since it computes the most
probable token in place of each of its tokens. If the two begin alike, decoding would read the same
tokens again. `KeptKeys` keeps their keys and values for it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, IntArray
from unlearnbench.base.out_of_memory import map_over_ranks
from unlearnbench.evaluation.predictor import Keys, Predictor, Wanted
from unlearnbench.evaluation.prefix_tree import Tree, rows_at
from unlearnbench.evaluation.side_by_side import (
    counting_in_this_thread,
    map_side_by_side,
    predictors_side_by_side,
)

_NO_INDICES: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class QuestionScores:
    """One question's rows under the model."""

    losses: tuple[FloatArray, ...]
    """For each row, the negative log-likelihood of its scored tokens in nats, with EOS.

    NaN where it is undefined.
    """
    argmax_tokens: tuple[int, ...]
    """[T] the most probable token in place of each scored token of the first row, or NOT_FINITE."""
    tied: tuple[bool, ...]
    """[T] whether another token was nearer than `predictor.tie_gap`."""
    moments: FloatArray | None
    """[T, 2] mean and variance of the log-probability in these places; None if not wanted."""
    observed: FloatArray
    """[T, O] the value of each observation in these places."""


class _Offer(NamedTuple):
    """Keys and values that may be kept."""

    question: int
    tokens: int
    """Number of tokens that they belong to."""
    keys: Keys


@dataclass(eq=False)
class KeptKeys:
    """Keys and values of tokens that scoring has read, and decoding would read again.

    Batches may be scored side by side. What is kept if there is not room for all does not depend on
    which batch ends first, because the batches get room in their order.
    """

    wanted: Callable[[int, Sequence[int], Sequence[bool]], int]
    """Returns how many first tokens of a question's first row to keep.

    Its arguments are the question's index, its most probable tokens, and their ties.
    """
    room: int
    """Tokens that may still be kept."""
    by_question: dict[int, Keys] = field(default_factory=dict[int, Keys])
    _offers_of_batch: dict[int, list[_Offer]] = field(default_factory=dict[int, list[_Offer]])
    """By number, the batches that have ended and wait for an earlier one."""
    _next_batch: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, index: int, tree: Tree, offset: int, count: int, keys: Keys) -> list[_Offer]:
        """Copy the keys and values of a question's first tokens, if there may be room.

        Args:
            index: The question.
            tree: Its tree.
            offset: Index of the tree's first node among the tokens of the batch.
            count: Number of tokens, from the beginning of the first row.
            keys: Keys and values of the batch.

        Returns:
            The copy, or nothing.
        """
        if not 0 < count <= self.room or not keys:
            return []
        nodes = torch.from_numpy(tree.paths[0][:count] + offset)
        copied = {
            layer: (rows_at(key, nodes), rows_at(value, nodes))
            for layer, (key, value) in keys.items()
        }
        return [_Offer(index, count, copied)]

    def end_batch(self, number: int, offers: list[_Offer]) -> None:
        """Keep what a batch offers, as far as the batches before it have left room.

        Args:
            number: Number of the batch. Each number from 0 on is passed once.
            offers: What the batch offers.
        """
        with self._lock:
            self._offers_of_batch[number] = offers
            while self._next_batch in self._offers_of_batch:
                for offer in self._offers_of_batch.pop(self._next_batch):
                    if offer.tokens <= self.room:
                        self.room -= offer.tokens
                        self.by_question[offer.question] = offer.keys
                self._next_batch += 1


def score(
    predictor: Predictor,
    trees: Sequence[Tree],
    count: Callable[[int], None] = lambda _: None,
    moments: Sequence[bool] = (),
    observations: Sequence[Observation] = (),
    kept: KeptKeys | None = None,
) -> list[QuestionScores]:
    """Score all rows of all questions. Collective.

    Args:
        predictor: The model, ready.
        trees: The rows of each question.
        count: Is called with the number of questions that this process has scored.
        moments: For each question, whether the moments of its first row are wanted. Defaults to
            none.
        observations: Are made of the tokens of every first row.
        kept: Gets the keys and values that it wants of the questions of this process.
    """
    batches = [*_batches(trees, predictor.batch_tokens)]
    counted = counting_in_this_thread(count)

    def score_batch(of_thread: Predictor, numbered: tuple[int, list[int]]) -> list[QuestionScores]:
        number, batch = numbered
        wants_moments = [bool(moments) and moments[i] for i in batch]
        scores, offers = _score_batch(of_thread, batch, trees, wants_moments, observations, kept)
        if kept is not None:
            kept.end_batch(number, offers)
        counted(len(batch))
        return scores

    predictors = predictors_side_by_side(predictor) if len(batches) > 1 else (predictor,)
    scores_of_batches = map_over_ranks(
        partial(score_batch, predictor),
        [*enumerate(batches)],
        lambda _, numbered: map_side_by_side(predictors, score_batch, numbered),
    )
    counted(0)
    by_index: dict[int, QuestionScores] = {}
    for batch, scores in zip(batches, scores_of_batches, strict=True):
        by_index |= zip(batch, scores, strict=True)
    return [by_index[i] for i in range(len(trees))]


def _batches(trees: Sequence[Tree], budget: int) -> Iterator[list[int]]:
    """Yield indices of trees of similar size, largest first.

    Trees of one size need little padding. If the largest batch does not fit into memory, that shows
    at once and not at the end, and processes that take turns end at nearly the same time.

    A batch has at most `budget` tokens, except if a single tree has more.
    """
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(trees)), key=lambda i: -len(trees[i].ids)):
        if batch and tokens + len(trees[i].ids) > budget:
            yield batch
            batch = []
            tokens = 0
        batch.append(i)
        tokens += len(trees[i].ids)
    if batch:
        yield batch


def _score_batch(
    predictor: Predictor,
    batch: Sequence[int],
    all_trees: Sequence[Tree],
    wants_moments: Sequence[bool],
    observations: Sequence[Observation],
    kept: KeptKeys | None,
) -> tuple[list[QuestionScores], list[_Offer]]:
    """Score the questions with the indices `batch` in one forward pass.

    Returns:
        The scores, and the keys and values that `kept` may keep.
    """
    trees = [all_trees[i] for i in batch]
    keys: Keys | None = {} if kept is not None and kept.room else None
    states = predictor.tree_states(trees, keys)

    # Positions of the batch: the predicting nodes of all trees, one tree after the other.
    row_positions: list[IntArray] = []
    row_labels: list[tuple[int, ...]] = []
    answer_positions: list[IntArray] = []
    answer_labels: list[IntArray] = []
    offset = 0
    for tree in trees:
        for row, places in zip(tree.rows, tree.places, strict=True):
            row_positions.append(places + offset)
            row_labels.append(row.ids[row.start :])
        answer = tree.rows[0]
        answer_positions.append(tree.places[0] + offset)
        answer_labels.append(np.array(answer.ids[answer.start :]))
        offset += len(tree.predicting)
    pairs = zip(answer_positions, wants_moments, strict=True)
    moment_positions = [positions for positions, wants in pairs if wants]
    scores = predictor.score_positions(
        states,
        Wanted(
            label_positions=np.concatenate(row_positions),
            labels=np.concatenate(row_labels),
            argmax_at=np.concatenate(answer_positions),
            moments_at=np.concatenate([_NO_INDICES, *moment_positions]),
            observations=observations,
            observed_labels=np.concatenate(answer_labels) if observations else _NO_INDICES,
        ),
    )

    losses_by_row = iter(_split(scores.losses, row_positions))
    moments_by_answer = iter(_split(scores.moments, moment_positions))
    question_scores: list[QuestionScores] = []
    offers: list[_Offer] = []
    begin = 0
    first_node = 0
    for i, tree, wants in zip(batch, trees, wants_moments, strict=True):
        end = begin + len(tree.places[0])
        argmax = scores.argmax_tokens[begin:end]
        tied = scores.tied[begin:end]
        if kept is not None and keys is not None:
            offers += kept.offer(i, tree, first_node, kept.wanted(i, argmax, tied), keys)
        question_scores.append(
            QuestionScores(
                losses=tuple(next(losses_by_row) for _ in tree.rows),
                argmax_tokens=tuple(argmax),
                tied=tuple(tied),
                moments=next(moments_by_answer) if wants else None,
                observed=scores.observed[begin:end],
            )
        )
        begin = end
        first_node += len(tree.ids)
    return question_scores, offers


def _split(values: FloatArray, like: Sequence[IntArray]) -> list[FloatArray]:
    """Split values into parts as long as those of `like`."""
    return np.split(values, np.cumsum([len(part) for part in like]))
