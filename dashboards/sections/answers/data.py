"""Answers of the models, encoded compactly: each distinct answer to a question once.

Answers to the same question are next to each other, because they are alike and compress well. A
page of bounded size cannot embed every answer of a large sweep: later questions are left out first,
and the data has the counts of what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation, SetName

from ...page_budget import EmbeddedEvaluations
from ...page_data import compressed_size, to_json

LIMITS = (
    *((1.0, rows) for rows in (400, 200, 100, 50, 25)),
    *((share, 25) for share in (0.5, 0.25)),
    *((share, 10) for share in (0.25, 0.1)),
    *((share, 3) for share in (0.1, 0.02, 0.0)),
)
"""(share of the evaluations, questions per set), tried in this order until the answers fit."""

_SKIP_ABOVE = 1.5
"""Steps of `LIMITS` whose estimated size is so many times the budget are not compressed."""


@dataclass
class _QuestionList:
    """The questions of a set, and the distinct texts that answer each of them."""

    number: int
    questions: list[str]
    texts: list[dict[str, int]]
    """Per question: text → number; the true answer is 0."""

    def text_number(self, question: int, text: str) -> int:
        """Look up or assign the number of a text among the answers to a question."""
        texts = self.texts[question]
        return texts.setdefault(text, len(texts))


Evaluations = Mapping[tuple[str, int | str], Evaluation]
"""By record and epoch; under an attack, epoch and variant: `5 relearning@13`."""
Key = tuple[tuple[str, ...], tuple[str, ...]]
"""(questions, true answers)"""


def answer_data(
    embedded: EmbeddedEvaluations,
    budget: int,
    memorization: Mapping[SetName, Measure] = MappingProxyType({}),
) -> dict[str, Any]:
    """Encode the answers of all evaluations in at most `budget` compressed bytes.

    memorization  by set, the metric that says how far a question's answer is memorized

    lists    per question list [questions, per question its texts: the true answer, others]
    answers  record → epoch, or `epoch variant` → set → [list, text numbers, 100 · ROUGE-L recall,
             100 · probability, 100 · memorization if it is known]; no text numbers of a set that
             is only scored
    rows     set → [embedded questions, all questions]
    models   [embedded evaluations, all evaluations]
    """
    with_texts = {
        key: evaluation
        for key, evaluation in embedded.evaluations.items()
        if any(any(part.generated) for part in evaluation.sets.values())
    }
    names = sorted({name for e in with_texts.values() for name in e.sets})
    counts = {
        name: max(len(e.sets[name].questions) for e in with_texts.values() if name in e.sets)
        for name in names
    }
    strengths = _strengths(with_texts, memorization)
    most = max(counts.values(), default=0)
    data: dict[str, Any] = {}
    ratio = math.inf  # compressed to plain bytes, of the last step
    for share, rows in LIMITS:
        if data and rows >= 2 * most:
            continue  # the same as the step before
        chosen = dict(list(with_texts.items())[: math.ceil(share * len(with_texts))])
        data = _encode(chosen, rows, strengths) | {
            "rows": {name: [min(rows, n), n] for name, n in counts.items() if n},
            "models": [sum(isinstance(epoch, int) for _, epoch in chosen), embedded.total],
        }
        plain = len(to_json(data))
        if ratio < math.inf and plain * ratio > _SKIP_ABOVE * budget and chosen:
            continue
        size = compressed_size(data)
        if size <= budget:
            break
        ratio = size / plain
    return data


def _strengths(
    evaluations: Evaluations, memorization: Mapping[SetName, Measure]
) -> Mapping[tuple[str, int | str, SetName], FloatArray]:
    """Compute the memorization of each question, where it is known."""
    return {
        (*key, name): values
        for key, evaluation in evaluations.items()
        for name, measure in memorization.items()
        if name in evaluation.sets
        and (values := measure.per_example(evaluation.sets[name])) is not None
    }


def _encode(
    evaluations: Evaluations,
    rows: int,
    strengths: Mapping[tuple[str, int | str, SetName], FloatArray],
) -> dict[str, Any]:
    lists: dict[Key, _QuestionList] = {}
    answers: dict[str, dict[str, dict[SetName, list[Any]]]] = {}
    for (record_id, epoch), evaluation in evaluations.items():
        sets = answers.setdefault(record_id, {}).setdefault(str(epoch), {})
        for name, part in sorted(evaluation.sets.items()):
            if part.generated or part.references:
                sets[name] = _encode_set(part, rows, lists)
                if (known := strengths.get((record_id, epoch, name))) is not None:
                    sets[name].append([_hundredths(share) for share in known[:rows].tolist()])
    texts = [[one.questions, [list(texts) for texts in one.texts]] for one in lists.values()]
    return {"lists": texts, "answers": answers}


def _encode_set(part: SetEvaluation, rows: int, lists: dict[Key, _QuestionList]) -> list[Any]:
    key = part.questions[:rows], part.references[:rows]
    found = lists.get(key)  # once: each look-up hashes all questions and answers
    if found is None:
        found = _QuestionList(len(lists), list(key[0]), [{truth: 0} for truth in key[1]])
        lists[key] = found
    return [
        found.number,
        [found.text_number(i, text) for i, text in enumerate(part.generated[:rows])],
        [_hundredths(share) for share in part.rouge_l_recall[:rows].tolist()],
        [_hundredths(math.exp(-loss)) for loss in part.answer_loss[:rows].tolist()],
    ]


def _hundredths(share: float) -> int | None:
    return round(100 * share) if 0 <= share <= 1 else None
