"""A model on the benchmark's four sets: scores, greedy answers, ROUGE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unlearnbench.data.benchmark import Benchmark, Question
from unlearnbench.data.encoding import Encoder, Row, Template
from unlearnbench.evaluation.generation import greedy
from unlearnbench.evaluation.profiles import Profile
from unlearnbench.evaluation.result import Evaluation, SetEvaluation, SetName
from unlearnbench.evaluation.rouge import rouge_recall
from unlearnbench.evaluation.scoring import Score, score


def evaluation_sets(
    benchmark: Benchmark, fraction: float, profile: Profile
) -> dict[SetName, tuple[Question, ...]]:
    """The questions of each set, as many as the profile takes."""
    sets: dict[SetName, tuple[Question, ...]] = {
        "retain": benchmark.retain_perturbed,
        "forget": benchmark.splits[fraction].forget_perturbed,
        "real_authors": benchmark.real_authors,
        "world_facts": benchmark.world_facts,
    }
    return {name: rows[: profile.rows] for name, rows in sets.items()}


@dataclass(frozen=True)
class _Item:
    """One question's rows: the answer, the base of its truth ratio, the perturbed answers."""

    question: Question
    rows: tuple[Row, ...]
    prompt: tuple[int, ...]


class Evaluator:
    """The four sets as tokens, ready for any number of models with the same tokenizer."""

    def __init__(
        self,
        sets: Mapping[SetName, Sequence[Question]],
        tokenizer: Any,
        template: Template,
        profile: Profile,
        pad: int,
        batch_tokens: int = 8192,
    ) -> None:
        self.profile, self.pad, self.batch_tokens = profile, pad, batch_tokens
        self.encoder = Encoder(tokenizer, template, profile.max_length, profile.eos_after_cut)
        self.sets: dict[SetName, list[_Item]] = {}
        for name, rows in sets.items():
            self.sets[name] = [self._item(q) for q in rows]

    def _item(self, question: Question) -> _Item:
        text = question.question
        # Facts have no paraphrase; their truth ratio is about the answer itself.
        variants = [question.answer, question.paraphrased_answer or question.answer]
        rows = tuple(self.encoder.row(text, v) for v in [*variants, *question.perturbed_answers])
        return _Item(question, rows, self.encoder.prompt(text))

    def __call__(self, model: Any) -> Evaluation:
        """Evaluate `model`, which must be in evaluation mode."""
        items = [item for rows in self.sets.values() for item in rows]
        scores = score(model, [item.rows for item in items], self.pad, self.batch_tokens)
        generated = self._generate(model, items, scores)
        results: dict[SetName, SetEvaluation] = {}
        begin = 0
        for name, rows in self.sets.items():
            end = begin + len(rows)
            results[name] = self._result(rows, scores[begin:end], generated[begin:end])
            begin = end
        return Evaluation(self.profile.id, results)

    def _generate(
        self, model: Any, items: Sequence[_Item], scores: Sequence[Sequence[Score]]
    ) -> list[str]:
        """Greedy answers; what the true answer's own pass has verified is not decoded again."""
        known: list[tuple[int, ...]] = []
        limits: list[int] = []
        for item, (answer, *_) in zip(items, scores, strict=True):
            drafted = self._drafted(item, answer)
            known.append(drafted)
            ended = drafted[-1:] == (self.encoder.eos,) or not math.isfinite(answer.loss)
            limits.append(0 if ended else max(self._limit(item) - len(drafted), 0))
        more = greedy(
            model,
            [(*item.prompt, *ids) for item, ids in zip(items, known, strict=True)],
            limits,
            eos=self.encoder.eos,
            pad=self.pad,
            batch_tokens=self.batch_tokens,
        )
        answers = [(*a, *b) for a, b in zip(known, more, strict=True)]
        return [
            self.encoder.decode(answer[: self._limit(item)])
            for item, answer in zip(items, answers, strict=True)
        ]

    def _limit(self, item: _Item) -> int:
        new = self.profile.max_new_tokens
        return self.profile.max_length - len(item.prompt) if new is None else new

    def _drafted(self, item: _Item, answer: Score) -> tuple[int, ...]:
        """First ids of the greedy answer, as far as the true answer's scores tell them."""
        row = item.rows[0]
        if row.ids[: row.start] != item.prompt or not math.isfinite(answer.loss):
            return ()  # the answer's first token begins inside the prompt: another start
        return (*row.ids[row.start : row.start + answer.agreed], answer.instead)[
            : answer.agreed + (answer.agreed < answer.tokens)
        ]

    def _result(
        self, items: Sequence[_Item], scores: Sequence[Sequence[Score]], generated: Sequence[str]
    ) -> SetEvaluation:
        references = [self.encoder.reference(item.rows[0]) for item in items]
        rouge1, rouge_l = rouge_recall(references, generated)
        loss = np.array([[s.loss for s in row] for row in scores], dtype=np.float64)
        tokens = np.array([[s.tokens for s in row] for row in scores], dtype=np.int64)
        return SetEvaluation(
            questions=tuple(item.question.question for item in items),
            generated=tuple(generated),
            references=tuple(references),
            answer_loss=loss[:, 0],
            answer_tokens=tokens[:, 0],
            base_loss=loss[:, 1],
            base_tokens=tokens[:, 1],
            perturbed_loss=loss[:, 2:],
            perturbed_tokens=tokens[:, 2:],
            rouge1_recall=rouge1,
            rouge_l_recall=rouge_l,
        )
