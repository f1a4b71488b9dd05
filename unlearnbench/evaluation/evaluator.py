"""A model on the benchmark's four sets: scores, greedy answers, ROUGE.

Scoring the true answer also verifies it as a draft of the greedy one; the rest is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unlearnbench.data.batching import fast_batch_tokens
from unlearnbench.data.benchmark import Question
from unlearnbench.data.encoding import Encoder, Row, Template
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.generation import Answer, Prompt, decode, steps_of
from unlearnbench.evaluation.prediction import Predictor
from unlearnbench.evaluation.profiles import Profile
from unlearnbench.evaluation.result import (
    Evaluation,
    FloatArray,
    SetEvaluation,
    SetName,
    Statistics,
)
from unlearnbench.evaluation.rouge import rouge_recall
from unlearnbench.evaluation.scoring import Scores, score
from unlearnbench.evaluation.tree import Tree, tree_of
from unlearnbench.group import of_all
from unlearnbench.models.shifted import ShiftedModel, Shifts
from unlearnbench.settings import Precision
from unlearnbench.shortage import everywhere, in_smaller_batches

Told = Callable[[int, int], None]
"""Gets the work done and the work of all; both count a question when scored, and when answered."""


@dataclass(frozen=True)
class _Item:
    """One question."""

    question: str
    rows: tuple[Row, ...]
    """The answer, the base of its truth ratio, perturbed answers; may repeat."""
    tree: Tree
    prompt: tuple[int, ...]
    reference: str

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)


class Evaluator:
    """The four sets as tokens, ready for any number of models with the same tokenizer."""

    def __init__(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        tokenizer: Any,
        template: Template,
        profile: Profile,
        pad: int,
        batch_tokens: int | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Encode the sets.

        batch_tokens  go through the model at once, about; default: what is fast there
        precision     default: bf16 on CUDA, the weights' own elsewhere, see `precision.py`
        """
        self.profile, self.pad, self.batch_tokens = profile, pad, batch_tokens
        self.precision: Precision | None = precision
        self.encoder = Encoder(tokenizer, template, profile.max_length, profile.eos_after_cut)
        self.sets: dict[SetName, list[_Item]] = {}
        for name, rows in sets.items():
            self.sets[name] = [self._item(q) for q in rows]

    def _item(self, question: Question) -> _Item:
        text = question.question
        rows = tuple(self.encoder.row(text, answer) for answer in question.scored_answers)
        reference, prompt = self.encoder.reference(rows[0]), self.encoder.prompt(text)
        return _Item(text, rows, tree_of(rows, prompt), prompt, reference)

    def __call__(
        self, model: Any, previous: Evaluation | None = None, told: Told | None = None
    ) -> Evaluation:
        """Evaluate `model`, which must be in evaluation mode; it may be a `ShiftedModel`.

        previous  an evaluation whose answers may be like this model's: of the epoch before, of the
                  fine-tuned model. It saves time and changes no number.

        In a torch.distributed group every process must call it, with the same model; the work is
        split (`told` gets this process's), and every process returns the same evaluation.
        """
        inner = model.model if isinstance(model, ShiftedModel) else model
        tokens = self.batch_tokens or fast_batch_tokens(next(inner.parameters()).device)
        found, fitting = in_smaller_batches(
            lambda tokens: self._evaluated(model, previous, told, tokens), tokens
        )
        if fitting != tokens:
            self.batch_tokens = fitting  # for good
        return found

    def _evaluated(
        self, model: Any, previous: Evaluation | None, told: Told | None, batch_tokens: int
    ) -> Evaluation:
        items = [item for rows in self.sets.values() for item in rows]
        shifts = None
        if isinstance(model, ShiftedModel):
            shifts = Shifts(model.shift, [item.prompt for item in items])
            model = model.model
        prompts = self._prompts(items, model, previous)
        count = _Counter(told, 2 * len(items))
        longest = max(*(i.longest for i in items), *(len(p.ids) + p.limit for p in prompts))
        how: dict[str, Any] = {"pad": self.pad, "longest": longest, "batch_tokens": batch_tokens}
        how["precision"] = self.precision
        predictor = everywhere(lambda: Predictor(model, items[0].tree, shifts=shifts, **how))
        # By the memory that is free; batches have to be the same in all processes.
        predictor.slot_tokens = min(of_all(predictor.slot_tokens))
        scores, answers, steps, clock = self._judged(predictor, items, prompts, count)
        sets: dict[SetName, SetEvaluation] = {}
        ids: dict[SetName, tuple[tuple[int, ...], ...]] = {}
        end = 0
        for name, rows in self.sets.items():
            begin, end = end, end + len(rows)
            sets[name] = self._result(rows, scores[begin:end], answers[begin:end])
            ids[name] = tuple(tuple(answer.ids) for answer in answers[begin:end])
        clock.append(time.monotonic())
        alone = steps_of([a.tokens for a in answers], prompts, predictor.slot_tokens)
        statistics = _statistics(items, scores, answers, (steps, alone - steps), clock)
        return Evaluation(self.profile.id, sets, statistics, ids, predictor.precision)

    def _judged(
        self,
        predictor: Predictor,
        items: Sequence[_Item],
        prompts: Sequence[Prompt],
        count: _Counter,
    ) -> tuple[list[Scores], list[Answer], int, list[float]]:
        """Scores, greedy answers, the steps these took; and the clock before, between and after."""
        clock = [time.monotonic()]
        with predictor.ready():

            def scored(places: Sequence[int], found: Sequence[Scores]) -> None:
                ended = [
                    not self._verified(items[i], prompts[i], each).goes_on(prompts[i].limit)
                    for i, each in zip(places, found, strict=True)
                ]
                count(len(places) + sum(ended))

            def answered(places: Sequence[int], _: Sequence[Answer]) -> None:
                count(len(places))

            # ROUGE comes at the end: a thread beside would keep this one, which has a GPU's next
            # operations to start, waiting for the interpreter.
            scores = score(predictor, [item.tree for item in items], scored)
            clock.append(time.monotonic())
            known = [self._verified(*each) for each in zip(items, prompts, scores, strict=True)]
            answers, steps = decode(predictor, prompts, known, self.encoder.eos, answered)
            clock.append(time.monotonic())
        return scores, answers, steps, clock

    def _prompts(
        self, items: Sequence[_Item], model: Any, previous: Evaluation | None
    ) -> list[Prompt]:
        """Where the answers start; raise EvaluationError where a row is too long for `model`."""
        config = model.config.get_text_config()
        context: int | None = getattr(config, "max_position_embeddings", None)
        drafts = {} if previous is None else self._said(previous)
        prompts: list[Prompt] = []
        for item in items:
            if context is not None and item.longest > context:
                raise EvaluationError(
                    f"question {item.question[:60]!r}: {len(item.prompt)} tokens as a prompt, "
                    f"{item.longest} with its longest answer, but the model's context is {context};"
                    f" set max_length to {context} or less, or leave the question out"
                )
            new = self.profile.max_new_tokens
            limit = self.profile.max_length - len(item.prompt) if new is None else new
            limit = limit if context is None else min(limit, context - len(item.prompt))
            like = tuple(row.ids[row.start :] for row in item.tree.rows)
            draft = drafts.get(item.question, ())
            prompts.append(Prompt(item.prompt, limit, draft, (draft, *like) if draft else like))
        return prompts

    def _said(self, previous: Evaluation) -> dict[str, tuple[int, ...]]:
        """The answers of `previous` by question, each with EOS."""
        said: dict[str, tuple[int, ...]] = {}
        for name, found in previous.sets.items():
            if previous.answers is not None:
                answers = list(previous.answers[name])
            else:  # read from a log; a text's tokens need not be the same ones to serve
                texts = zip(found.questions, found.generated, strict=False)
                answers = [self._ids(question, text) for question, text in texts]
            for question, answer in zip(found.questions, answers, strict=False):
                said[question] = (*answer, self.encoder.eos)
        return said

    def _ids(self, question: str, text: str) -> tuple[int, ...]:
        answer = text.removeprefix(self.encoder.template.tag.strip()).strip()
        row = self.encoder.row(question, answer)
        return tuple(token for token in row.ids[row.start :] if token != self.encoder.eos)

    def _verified(self, item: _Item, prompt: Prompt, scores: Scores) -> Answer:
        """The greedy answer as far as the true answer's scores tell it."""
        answer, row = Answer(), item.tree.rows[0]
        if row.ids[: row.start] == prompt.ids:  # else its first token begins inside the prompt
            labels = row.ids[row.start :]
            answer.take(labels, scores.said, scores.tied, prompt.limit, self.encoder.eos)
        return answer

    def _rouge(
        self, items: Sequence[_Item], answers: Sequence[Answer]
    ) -> tuple[FloatArray, FloatArray]:
        generated = [self.encoder.decode(tuple(answer.ids)) for answer in answers]
        return rouge_recall([item.reference for item in items], generated)

    def _result(
        self, items: Sequence[_Item], scores: Sequence[Scores], answers: Sequence[Answer]
    ) -> SetEvaluation:
        rouge1, rouge_l = self._rouge(items, answers)
        broken = np.array([not answer.finite for answer in answers], dtype=bool)
        losses = [
            [s.losses[item.tree.rows.index(row)] for row in item.rows]
            for item, s in zip(items, scores, strict=True)
        ]
        loss = np.array([[each.mean() for each in row] for row in losses], dtype=np.float64)
        tokens = np.array([[len(each) for each in row] for row in losses], dtype=np.int64)
        return SetEvaluation(
            questions=tuple(item.question for item in items),
            generated=tuple(self.encoder.decode(tuple(answer.ids)) for answer in answers),
            references=tuple(item.reference for item in items),
            answer_loss=loss[:, 0],
            answer_tokens=tokens[:, 0],
            base_loss=loss[:, 1],
            base_tokens=tokens[:, 1],
            perturbed_loss=loss[:, 2:],
            perturbed_tokens=tokens[:, 2:],
            rouge1_recall=np.where(broken, np.nan, rouge1),
            rouge_l_recall=np.where(broken, np.nan, rouge_l),
        )


class _Counter:
    """Adds up the work done and tells it."""

    def __init__(self, told: Told | None, whole: int) -> None:
        self.told, self.whole, self.done = told, whole, 0

    def __call__(self, questions: int) -> None:
        self.done += questions
        if self.told is not None:
            self.told(self.done, self.whole)


def _statistics(
    items: Sequence[_Item],
    scores: Sequence[Scores],
    answers: Sequence[Answer],
    steps: tuple[int, int],
    clock: Sequence[float],
) -> Statistics:
    """`steps` taken and saved; `clock` at the start and the end of each phase."""
    broken = [
        item.question
        for item, found, answer in zip(items, scores, answers, strict=True)
        if not answer.finite or not all(np.isfinite(each).all() for each in found.losses)
    ]
    scoring, generation, rouge = (b - a for a, b in pairwise(clock))
    return Statistics(
        generated=sum(answer.tokens for answer in answers),
        drafted=sum(answer.drafted for answer in answers),
        steps=steps[0],
        steps_saved=steps[1],
        ties=tuple(i.question for i, answer in zip(items, answers, strict=True) if answer.tied),
        not_finite=broken[0] if broken else None,
        scoring_seconds=scoring,
        generation_seconds=generation,
        rouge_seconds=rouge,
    )
