"""What the models say, compact enough for a page: each distinct text once, all else by number.

A page of bounded size cannot hold every answer of a large sweep: last epochs come before earlier
ones, first questions before later ones, and the counts of what is left out are part of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unlearnbench.evaluation.result import Evaluation, SetEvaluation, SetName
from unlearnbench.records import Record
from unlearnbench.table import SET_ORDER

MAX_EVALUATIONS = 600
"""Models, each at one epoch, whose answers a page holds."""
MAX_CHARACTERS = 6_000_000
"""Of distinct text, before compression, which leaves about a quarter."""
_ROWS = (400, 200, 100, 50, 25, 10, 5)


@dataclass
class _Texts:
    """Distinct texts by number."""

    numbers: dict[str, int] = field(default_factory=dict)
    characters: int = 0

    def add(self, text: str) -> int:
        """The number of `text`, which is new or not."""
        if text not in self.numbers:
            self.characters += len(text)
        return self.numbers.setdefault(text, len(self.numbers))


def collect(records: Iterable[Record]) -> dict[str, Any]:
    """The answers of all records, as the page reads them.

    texts    distinct texts
    lists    per question list [questions, true answers], as numbers of texts
    said     record → epoch → set → [list, answers, 100 · ROUGE-L recall, 100 · probability]
    rows     set → [questions held, questions there are]
    models   [evaluations held, evaluations there are]
    """
    records = tuple(records)
    wanted = _wanted(records)
    there = sum(len(r.evaluations) for r in records)
    held: dict[tuple[str, int], Evaluation] = {}
    for record, epoch in wanted[:MAX_EVALUATIONS]:
        evaluation = record.evaluations[epoch]
        if any(any(part.generated) for part in evaluation.sets.values()):
            held[record.id, epoch] = evaluation
    rows = _ROWS[0]
    found, characters = _compact(held, rows)
    for fewer in _ROWS[1:]:
        if characters > MAX_CHARACTERS:
            rows = fewer
            found, characters = _compact(held, rows)
    counts = {
        name: max((len(e.sets[name].questions) for e in held.values() if name in e.sets), default=0)
        for name in SET_ORDER
    }
    return found | {
        "rows": {name: [min(rows, n), n] for name, n in counts.items() if n},
        "models": [len(held), there],
    }


def _wanted(records: Sequence[Record]) -> list[tuple[Record, int]]:
    """Anchors, then every run's last epoch, then the last but one, and so on."""
    pairs = [
        (record.kind == "run", place, index, record, epoch)
        for index, record in enumerate(records)
        for place, epoch in enumerate(sorted(record.evaluations, reverse=True))
    ]
    return [(record, epoch) for *_, record, epoch in sorted(pairs, key=lambda p: p[:3])]


def _compact(held: Mapping[tuple[str, int], Evaluation], rows: int) -> tuple[dict[str, Any], int]:
    texts = _Texts()
    lists: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    said: dict[str, dict[str, dict[SetName, list[Any]]]] = {}
    for (record_id, epoch), evaluation in held.items():
        sets = said.setdefault(record_id, {}).setdefault(str(epoch), {})
        for name in SET_ORDER:
            part = evaluation.sets.get(name)
            if part is not None and part.generated:
                sets[name] = _one_set(part, rows, texts, lists)
    found = {"texts": list(texts.numbers), "lists": list(lists), "said": said}
    return found, texts.characters


def _one_set(
    part: SetEvaluation,
    rows: int,
    texts: _Texts,
    lists: dict[tuple[tuple[int, ...], tuple[int, ...]], int],
) -> list[Any]:
    key = (
        tuple(texts.add(q) for q in part.questions[:rows]),
        tuple(texts.add(a) for a in part.references[:rows]),
    )
    loss = part.answer_loss[:rows].tolist()
    rouge = part.rouge_l_recall[:rows].tolist()
    return [
        lists.setdefault(key, len(lists)),
        [texts.add(a) for a in part.generated[:rows]],
        [_hundredths(r) for r in rouge],
        [_hundredths(math.exp(-nll)) for nll in loss],
    ]


def _hundredths(share: float) -> int | None:
    return round(100 * share) if 0 <= share <= 1 else None
