"""Answers before and after: the texts that models generated, epoch by epoch."""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from unlearnbench.analysis.scorecard import REPETITION
from unlearnbench.analysis.settings import Setting
from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.results.records import Record

from ...page_data import to_json
from ...report_section import PageContext, Section
from ..best_settings import warnings_of
from ..lasting import variant_answers

MAX_EVALUATIONS = 600
"""Evaluations: a model at an epoch."""
LIMITS = ((1.0, 400), (1.0, 100), (1.0, 25), (0.25, 25), (0.1, 10), (0.02, 3), (0.0, 0))
"""(share of the evaluations, questions per set), tried in this order until the answers fit."""

Evaluations = Mapping[tuple[str, int | str], Evaluation]
"""By record and epoch; under an attack, epoch and variant: `5 relearning@13`."""
Key = tuple[tuple[str, ...], tuple[str, ...]]
"""(questions, true answers)"""


def chosen_evaluations(context: PageContext) -> Evaluations:
    """Read the evaluations that the page embeds, most useful first."""
    pairs = by_usefulness(context.report.records, context.best)[:MAX_EVALUATIONS]
    best = {(row.run_id, row.epoch) for item in context.best for row in item.rows}
    leading = [(r, epoch) for r, epoch in pairs if r.kind != "run" or (r.id, epoch) in best]
    evaluations: dict[tuple[str, int | str], Evaluation | None] = {
        (record.id, epoch): context.evaluation(record.id, epoch) for record, epoch in leading
    }
    for key, answer in variant_answers(context).items():
        evaluations[key] = answer
    evaluations |= {(r.id, epoch): context.evaluation(r.id, epoch) for r, epoch in pairs}
    return {key: item for key, item in evaluations.items() if item is not None}


def by_usefulness(records: Sequence[Record], best: Iterable[Setting]) -> list[tuple[Record, int]]:
    """Sort every evaluation, most useful first; `tier` has the order."""
    best = tuple(best)
    epochs = {row.run_id: setting.epoch for setting in best for row in setting.rows}
    leading = {setting.rows[0].run_id for setting in best}

    def tier(record: Record, epoch: int, back: int) -> int:
        if record.kind != "run":
            return 0
        if epochs.get(record.id) == epoch:
            return 1
        return 2 if record.id in leading else 3 + back

    pairs = [
        ((tier(record, epoch, back), index, back), record, epoch)
        for index, record in enumerate(records)
        for back, epoch in enumerate(sorted(record.evaluations, reverse=True))
    ]
    return [(record, epoch) for _, record, epoch in sorted(pairs, key=lambda pair: pair[0])]


@dataclass
class _QuestionList:
    """The questions of a set, and the distinct texts that answer each of them."""

    number: int
    questions: list[str]
    texts: list[dict[str, int]]
    """Per question: text → number; the true answer is 0."""


def answer_data(
    evaluations: Evaluations,
    total: int,
    budget: int,
    memorization: Mapping[SetName, Measure] = MappingProxyType({}),
    repetition: Mapping[SetName, Measure] = MappingProxyType({}),
) -> dict[str, Any]:
    """Encode the answers in at most `budget` compressed bytes.

    Args:
        evaluations: By record and epoch, most useful first.
        total: Number of evaluations in all records.
        budget: Largest size in bytes.
        memorization: By set, the metric that says how far a question's answer is memorized.
        repetition: By set, the metric that falls where an answer repeats itself.

    Returns:
        `lists`: per question list [questions, per question its texts: the true answer, others].
        `answers`: record → epoch, or `epoch variant` → set → [list, text numbers, 100 · ROUGE-L
        recall, 100 · probability, 100 · memorization or None, numbers of the questions whose answer
        repeats itself]; no text numbers of a set that is only scored, and fewer entries if the last
        ones are not known.
        `rows`: set → [embedded questions, all questions].
        `models`: [embedded evaluations, all evaluations].
    """
    with_texts = {
        key: evaluation
        for key, evaluation in evaluations.items()
        if any(any(part.generated) for part in evaluation.sets.values())
    }
    sets = [(name, item) for e in with_texts.values() for name, item in sorted(e.sets.items())]
    counts: dict[SetName, int] = {}
    for name, item in sets:
        counts[name] = max(counts.get(name, 0), len(item.questions))
    data: dict[str, Any] = {}
    for share, rows in LIMITS:
        chosen = dict(list(with_texts.items())[: math.ceil(share * len(with_texts))])
        data = _encode(chosen, rows, memorization, repetition) | {
            "rows": {name: [min(rows, n), n] for name, n in sorted(counts.items()) if n},
            "models": [sum(isinstance(epoch, int) for _, epoch in chosen), total],
        }
        if len(zlib.compress(to_json(data).encode(), 6)) * 4 // 3 <= budget:  # in base 64
            break
    return data


def _encode(
    evaluations: Evaluations,
    rows: int,
    memorization: Mapping[SetName, Measure],
    repetition: Mapping[SetName, Measure],
) -> dict[str, Any]:
    lists: dict[Key, _QuestionList] = {}
    answers: dict[str, dict[str, dict[SetName, list[Any]]]] = {}
    for (record_id, epoch), evaluation in evaluations.items():
        sets = answers.setdefault(record_id, {}).setdefault(str(epoch), {})
        for name, part in sorted(evaluation.sets.items()):
            if part.generated or part.references:
                sets[name] = _encode_set(part, rows, lists)
                sets[name] += _encode_values(
                    part, rows, memorization.get(name), repetition.get(name)
                )
    texts = [[item.questions, [list(texts) for texts in item.texts]] for item in lists.values()]
    return {"lists": texts, "answers": answers}


def _encode_values(
    part: SetEvaluation, rows: int, memorization: Measure | None, repetition: Measure | None
) -> list[Any]:
    """Encode how far answers are memorized, and which repeat themselves, if that is known."""
    strengths = None if memorization is None else memorization.per_example(part)
    distinct = None if repetition is None else repetition.per_example(part)
    encoded: list[Any] = []
    if strengths is not None or distinct is not None:
        encoded.append(
            None if strengths is None else list(map(_hundredths, strengths[:rows].tolist()))
        )
    if distinct is not None:
        texts = part.generated or [""] * len(distinct)
        shares = zip(texts, distinct[:rows].tolist(), strict=False)
        encoded.append([i for i, (text, share) in enumerate(shares) if _is_looping(text, share)])
    return encoded


def _is_looping(text: str, share: float) -> bool:
    """Whether an answer repeats itself.

    Args:
        text: The answer.
        share: Its distinct 4-grams as a share of all, which is 0 for an answer without words.
    """
    if share > 0:
        return share < LOOPING
    # An answer of marks alone, such as `!!!!!!!!`, has no words. A single mark says nothing twice.
    marks = "".join(text.split())
    return len(marks) > 4 and len(set(marks)) < LOOPING * len(marks)


def _encode_set(part: SetEvaluation, rows: int, lists: dict[Key, _QuestionList]) -> list[Any]:
    key = part.questions[:rows], part.references[:rows]
    result = lists.get(key)  # once: each look-up hashes all questions and answers
    if result is None:
        result = _QuestionList(len(lists), list(key[0]), [{truth: 0} for truth in key[1]])
        lists[key] = result
    generated = zip(result.texts, part.generated[:rows], strict=False)
    return [
        result.number,
        [texts.setdefault(text, len(texts)) for texts, text in generated],
        [_hundredths(share) for share in part.rouge_l_recall[:rows].tolist()],
        [_hundredths(math.exp(-loss)) for loss in part.answer_loss[:rows].tolist()],
    ]


def _hundredths(share: float) -> int | None:
    return round(100 * share) if 0 <= share <= 1 else None


MEMORIZATION = "extraction_strength"
"""Metric that questions are sorted by."""
LOOPING = 0.5
"""Share of an answer's distinct 4-grams below which the answer is marked: it says more than half of
them again. A convention of this page."""
MAX_BYTES = 4_000_000
"""Size limit of the answers; those that would exceed it are left out, and counted."""


class Answers(Section):
    """The answers of a run, an epoch and a set, which the reader chooses."""

    name, title, order, folder = "answers", "Answers", 100, "answers"

    def data(self, context: PageContext) -> Any:
        """Encode the answers, most useful first."""
        measures = context.columns.schema.measures.values()
        memorization = {on: measure for measure, on in measures if measure.name == MEMORIZATION}
        repetition = {on: measure for measure, on in measures if measure.name == REPETITION}
        total = sum(len(record.evaluations) for record in context.report.records)
        chosen = chosen_evaluations(context)
        encoded = answer_data(chosen, total, MAX_BYTES, memorization, repetition)
        return encoded | {"warnings": _warnings(context)}


def _warnings(context: PageContext) -> dict[str, str]:
    """Name why the scores of best settings are no success, by `epoch@run` of their seeds."""
    return {
        f"{row.epoch}@{row.run_id}": ", ".join(warnings)
        for setting in context.best
        if (warnings := warnings_of(context, setting))
        for row in setting.rows
    }
