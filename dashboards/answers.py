"""What the models say, compact enough for a page: each distinct answer to a question once.

Answers to one question stand together, where they are most alike and deflate best. A page of
bounded size cannot hold every answer of a large sweep: first questions come before later ones, and
the counts of what is left out are part of the data.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unlearnbench.evaluation.result import Evaluation, SetEvaluation, SetName
from unlearnbench.table import SET_ORDER

from .held import Held

LIMITS = (
    *((1.0, rows) for rows in (400, 200, 100, 50, 25)),
    *((share, 25) for share in (0.5, 0.25)),
    *((share, 10) for share in (0.25, 0.1)),
    *((share, 3) for share in (0.1, 0.02, 0.0)),
)
"""(share of the evaluations, questions of each set), tried in this order until they fit."""

_HOPELESS = 1.5
"""Times the budget that a try may seem to be, by the ratio of the one before, to be deflated."""


@dataclass
class _Questions:
    """One list of questions, and what was said to each."""

    said: list[dict[str, int]]
    """Per question: text → number, true answer first."""

    def add(self, index: int, text: str) -> int:
        """Number of what was said to a question."""
        texts = self.said[index]
        return texts.setdefault(text, len(texts))


@dataclass
class _Lists:
    numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = field(default_factory=dict)
    lists: list[_Questions] = field(default_factory=list)

    def number(self, part: SetEvaluation, rows: int) -> int:
        """Of the list of questions that a set has."""
        key = part.questions[:rows], part.references[:rows]
        if key not in self.numbers:
            self.numbers[key] = len(self.lists)
            self.lists.append(_Questions([{truth: 0} for truth in key[1]]))
        return self.numbers[key]


def collect(held: Held, budget: int) -> dict[str, Any]:
    """The answers of all evaluations in at most `budget` deflated bytes, as the page reads them.

    lists    per question list [questions, per question its texts: the true answer, others]
    said     record → epoch → set → [list, texts by number, 100 · ROUGE-L recall, 100 · probability]
    rows     set → [questions held, questions there are]
    models   [evaluations held, evaluations there are]
    """
    spoken = {
        key: evaluation
        for key, evaluation in held.evaluations.items()
        if any(any(part.generated) for part in evaluation.sets.values())
    }
    counts = {
        name: max(
            (len(e.sets[name].questions) for e in spoken.values() if name in e.sets), default=0
        )
        for name in SET_ORDER
    }
    most = max(counts.values(), default=0)
    found: dict[str, Any] = {}
    ratio = math.inf  # deflated to plain, of the last try
    for share, rows in LIMITS:
        if found and rows >= 2 * most:
            continue  # the try before was the same
        kept = dict(list(spoken.items())[: math.ceil(share * len(spoken))])
        found = _compact(kept, rows) | {
            "rows": {name: [min(rows, n), n] for name, n in counts.items() if n},
            "models": [len(kept), held.there],
        }
        plain = len(_dumps(found))
        if ratio < math.inf and plain * ratio > _HOPELESS * budget and kept:
            continue
        size = deflated_size(found)
        if size <= budget:
            break
        ratio = size / plain
    return found


def deflated_size(value: Any) -> int:
    """Bytes of a value's JSON, deflated and in base 64."""
    return len(zlib.compress(_dumps(value).encode(), 6)) * 4 // 3


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _compact(held: Mapping[tuple[str, int], Evaluation], rows: int) -> dict[str, Any]:
    lists = _Lists()
    said: dict[str, dict[str, dict[SetName, list[Any]]]] = {}
    for (record_id, epoch), evaluation in held.items():
        sets = said.setdefault(record_id, {}).setdefault(str(epoch), {})
        for name in SET_ORDER:
            part = evaluation.sets.get(name)
            if part is not None and part.generated:
                sets[name] = _one_set(part, rows, lists)
    texts = [[list(one) for one in questions.said] for questions in lists.lists]
    heads = [list(questions) for questions, _ in lists.numbers]
    return {"lists": [list(pair) for pair in zip(heads, texts, strict=True)], "said": said}


def _one_set(part: SetEvaluation, rows: int, lists: _Lists) -> list[Any]:
    number = lists.number(part, rows)
    questions = lists.lists[number]
    return [
        number,
        [questions.add(i, text) for i, text in enumerate(part.generated[:rows])],
        [_hundredths(share) for share in part.rouge_l_recall[:rows].tolist()],
        [_hundredths(math.exp(-loss)) for loss in part.answer_loss[:rows].tolist()],
    ]


def _hundredths(share: float) -> int | None:
    return round(100 * share) if 0 <= share <= 1 else None
