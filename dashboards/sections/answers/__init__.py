"""Answers before and after: the texts that models generated, epoch by epoch.

The page embeds as many answers as fit into `MAX_BYTES`. The evaluations are sorted by how useful
their answers are, and the least useful ones are left out first. Each text is stored once per
question, because models often give the same answer. `section.js` decodes the data.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from unlearnbench.analysis.scorecard import REPETITION
from unlearnbench.analysis.settings import Setting
from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.results.records import Record

from ...page_data import to_json
from ...report_section import PageContext, Section
from ..best_settings import warnings_of
from ..lasting import variant_answers


class _Limit(NamedTuple):
    """How much of the answers is embedded."""

    share: float
    """Fraction of the evaluations, the most useful ones."""
    rows: int
    """Number of questions of each set, the first ones."""


MAX_BYTES = 4_000_000
"""Largest size of the answers on the page. Answers beyond it are left out, and the page says how
many."""
MAX_EVALUATIONS = 600
"""Largest number of evaluations without an attack that are read from the records."""
LIMITS = (
    _Limit(1.0, 400),
    _Limit(1.0, 100),
    _Limit(1.0, 25),
    _Limit(0.25, 25),
    _Limit(0.1, 10),
    _Limit(0.02, 3),
    _Limit(0.0, 0),
)
"""Tried in this order until the answers fit."""
MEMORIZATION = "extraction_strength"
"""Metric by which the page can sort questions."""
LOOPING = 0.5
"""An answer is marked as repeating itself if fewer of its 4-grams than this fraction are distinct.
It then says more than half of them again. A convention of this page."""
_FEWEST_MARKS = 5
"""Punctuation marks that an answer without words needs to be marked as repeating itself."""

Evaluations = Mapping[tuple[str, int | str], Evaluation]
"""Evaluations by record and epoch. Under an attack, the epoch has the variant behind it:
`5 relearning@13`."""
Key = tuple[tuple[str, ...], tuple[str, ...]]
"""The questions of a set, and their true answers."""


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
    """Collect why the scores of best settings are no success.

    Returns:
        Warnings of each seed by `epoch@run`, such as `3@1055048e802961c5`.
    """
    texts: dict[str, str] = {}
    for setting in context.best:
        warnings = warnings_of(context, setting)
        if warnings:
            for row in setting.rows:
                texts[f"{row.epoch}@{row.run_id}"] = ", ".join(warnings)
    return texts


def chosen_evaluations(context: PageContext) -> Evaluations:
    """Read the evaluations that the page embeds, most useful first.

    Start and retain models and best settings come first, then evaluations under attacks, and then
    all other evaluations.
    """
    pairs = by_usefulness(context.report.records, context.best)[:MAX_EVALUATIONS]
    best = {(row.run_id, row.epoch) for setting in context.best for row in setting.rows}
    evaluations: dict[tuple[str, int | str], Evaluation | None] = {}
    for record, epoch in pairs:
        if record.kind != "run" or (record.id, epoch) in best:
            evaluations[record.id, epoch] = context.evaluation(record.id, epoch)
    for (record_id, epoch_and_variant), evaluation in variant_answers(context).items():
        evaluations[record_id, epoch_and_variant] = evaluation
    for record, epoch in pairs:
        # What is already there keeps its place in the order.
        evaluations[record.id, epoch] = context.evaluation(record.id, epoch)
    return {key: evaluation for key, evaluation in evaluations.items() if evaluation is not None}


def by_usefulness(records: Sequence[Record], best: Iterable[Setting]) -> list[tuple[Record, int]]:
    """Sort all evaluations, each given by its record and epoch, by how useful their answers are.

    Start and retain models come first, then best settings, then the other epochs of the first seeds
    of best settings. All other runs come last, and of these the last epochs of all runs come before
    the epochs before the last.

    Args:
        records: All records. Evaluations that are equally useful keep this order.
        best: The best setting of each method on each panel.
    """
    best = tuple(best)
    best_epoch = {row.run_id: setting.epoch for setting in best for row in setting.rows}
    first_seeds = {setting.rows[0].run_id for setting in best}

    def tier(record: Record, epoch: int, from_end: int) -> int:
        if record.kind != "run":
            return 0
        if best_epoch.get(record.id) == epoch:
            return 1
        return 2 if record.id in first_seeds else 3 + from_end

    ranked: list[tuple[tuple[int, int, int], Record, int]] = []
    for index, record in enumerate(records):
        for from_end, epoch in enumerate(sorted(record.evaluations, reverse=True)):
            ranked.append(((tier(record, epoch, from_end), index, from_end), record, epoch))
    ranked.sort(key=lambda entry: entry[0])
    return [(record, epoch) for _, record, epoch in ranked]


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
        memorization: Metric, by set, that says how far a question's answer is memorized.
        repetition: Metric, by set, that falls if an answer repeats itself.

    Returns:
        `lists`: lists of questions, [questions, texts of each question]. The first text of a
            question is its true answer, and the others are what models gave.
        `answers`: by record, by epoch or `epoch variant`, and by set, a list of values that are
            lists by question: [number of the list of questions, numbers of the texts, 100 · ROUGE-L
            recall, 100 · probability, 100 · memorization, numbers of the questions whose answer
            repeats itself]. A number is None if it is not defined, a set that is only scored has no
            texts, and the last two values are missing if they are not known.
        `rows`: by set, [embedded questions, all questions].
        `models`: [embedded evaluations without an attack, all of them].
    """
    with_texts = {
        key: evaluation for key, evaluation in evaluations.items() if _has_text(evaluation)
    }
    question_counts = _question_counts(with_texts.values())
    data: dict[str, Any] = {}
    for limit in LIMITS:
        kept = math.ceil(limit.share * len(with_texts))
        chosen = dict(list(with_texts.items())[:kept])
        data = _encode(chosen, limit.rows, memorization, repetition)
        data["rows"] = {
            name: [min(limit.rows, count), count]
            for name, count in sorted(question_counts.items())
            if count
        }
        data["models"] = [sum(isinstance(epoch, int) for _, epoch in chosen), total]
        if _embedded_size(data) <= budget:
            break
    return data


def _has_text(evaluation: Evaluation) -> bool:
    """Whether the model generated any answer that is not empty."""
    return any(any(part.generated) for part in evaluation.sets.values())


def _question_counts(evaluations: Iterable[Evaluation]) -> dict[SetName, int]:
    """Count the questions of each set, by the evaluation that has most of them."""
    counts: dict[SetName, int] = {}
    for evaluation in evaluations:
        for name, part in sorted(evaluation.sets.items()):
            counts[name] = max(counts.get(name, 0), len(part.questions))
    return counts


def _embedded_size(data: Any) -> int:
    """Estimate the bytes that data take on the page: compressed, and then in base 64."""
    return len(zlib.compress(to_json(data).encode(), 6)) * 4 // 3


@dataclass
class _QuestionList:
    """The questions of a set, and the distinct texts that answer each of them."""

    number: int
    questions: list[str]
    number_of_text: list[dict[str, int]]
    """For each question, a number by text. The true answer has number 0."""


def _encode(
    evaluations: Evaluations,
    rows: int,
    memorization: Mapping[SetName, Measure],
    repetition: Mapping[SetName, Measure],
) -> dict[str, Any]:
    """Encode the `lists` and `answers` of `answer_data`: the first `rows` questions of each set."""
    lists: dict[Key, _QuestionList] = {}
    answers: dict[str, dict[str, dict[SetName, list[Any]]]] = {}
    for (record_id, epoch), evaluation in evaluations.items():
        sets = answers.setdefault(record_id, {}).setdefault(str(epoch), {})
        for name, part in sorted(evaluation.sets.items()):
            if not part.generated and not part.references:
                continue
            texts_and_scores = _encode_set(part, rows, lists)
            further = _encode_values(part, rows, memorization.get(name), repetition.get(name))
            sets[name] = texts_and_scores + further
    encoded_lists: list[list[Any]] = []
    for question_list in lists.values():
        texts = [list(numbers) for numbers in question_list.number_of_text]
        encoded_lists.append([question_list.questions, texts])
    return {"lists": encoded_lists, "answers": answers}


def _encode_set(part: SetEvaluation, rows: int, lists: dict[Key, _QuestionList]) -> list[Any]:
    """Encode the texts and scores of a set, and add questions and texts that are new to `lists`."""
    key = part.questions[:rows], part.references[:rows]
    # Each look-up hashes all questions and answers, so there is only one.
    question_list = lists.get(key)
    if question_list is None:
        questions, truths = key
        number_of_text = [{truth: 0} for truth in truths]
        question_list = _QuestionList(len(lists), list(questions), number_of_text)
        lists[key] = question_list

    text_numbers: list[int] = []
    # A set that is only scored has no generated texts.
    for numbers, text in zip(question_list.number_of_text, part.generated[:rows], strict=False):
        text_numbers.append(numbers.setdefault(text, len(numbers)))
    return [
        question_list.number,
        text_numbers,
        [_hundredths(recall) for recall in part.rouge_l_recall[:rows].tolist()],
        [_hundredths(math.exp(-loss)) for loss in part.answer_loss[:rows].tolist()],
    ]


def _encode_values(
    part: SetEvaluation, rows: int, memorization: Measure | None, repetition: Measure | None
) -> list[Any]:
    """Encode how far answers are memorized, and which repeat themselves, if that is known."""
    strengths = None if memorization is None else memorization.per_example(part)
    distinct = None if repetition is None else repetition.per_example(part)
    if strengths is None and distinct is None:
        return []
    encoded: list[Any] = [None]
    if strengths is not None:
        encoded = [[_hundredths(strength) for strength in strengths[:rows].tolist()]]
    if distinct is not None:
        texts = part.generated or [""] * len(distinct)
        shares = distinct[:rows].tolist()
        looping: list[int] = []
        for number, (text, share) in enumerate(zip(texts, shares, strict=False)):
            if _is_looping(text, share):
                looping.append(number)
        encoded.append(looping)
    return encoded


def _is_looping(text: str, share: float) -> bool:
    """Whether an answer repeats itself.

    Args:
        text: The answer.
        share: Its distinct 4-grams as a fraction of all, which is 0 for an answer without words.
    """
    if share > 0:
        return share < LOOPING
    # An answer of marks alone, such as `!!!!!!!!`, has no words. A single mark says nothing twice.
    marks = "".join(text.split())
    return len(marks) >= _FEWEST_MARKS and len(set(marks)) < LOOPING * len(marks)


def _hundredths(share: float) -> int | None:
    """Round a number from 0 to 1 to hundredths. None if it is not defined (NaN)."""
    return round(100 * share) if 0 <= share <= 1 else None
