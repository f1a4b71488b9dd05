"""Made-up rows in the layouts of benchmarks: evaluation sets, and rows that attacks train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Question, SplitKey

_PLACES = ("Lima", "Perth", "Tbilisi", "Hobart", "Quito", "Oslo", "Rome", "Accra", "Turin", "Nara")
_TRADES = ("baker", "pilot", "potter", "judge", "nurse", "farmer")
SUBJECT_ROWS = 2
"""Rows to forget about one person."""


@dataclass(frozen=True)
class RowPlan:
    """Which rows there are."""

    count: int = 10
    """Rows of the forget set. Other sets have about as many."""
    has_duplicates: bool = False
    """Two rows of the forget set ask the same question, with different answers."""
    leaves_out_paraphrases: bool = False
    """Some rows have no other wording, so that a paraphrase attack leaves them out."""
    has_fewer_wrong_answers: bool = False
    """Some rows have fewer wrong answers than others."""
    has_wrong_answers: bool = True
    """Rows of a user's own have wrong answers and the answer in other words."""
    has_holdout: bool = True
    """There are rows of a user's own that no model has seen."""
    has_empty_answer: bool = False
    """A row of the forget set has an answer without any token but the one that ends it."""


@dataclass(frozen=True)
class MadeUpRows:
    """The rows of one split."""

    sets: Mapping[str, tuple[Question, ...]]
    """By evaluation set, in the order in which they are evaluated."""
    attack_rows: AttackRows


def rows_of(source: str, split: SplitKey, plan: RowPlan) -> MadeUpRows:
    """Return rows as the benchmark called `source` has them at a split."""
    name = str(split)
    if source in ("synthetic", "tofu"):
        sets = _tofu(name, plan)
        forget = sets["forget"]
    elif source.startswith("muse"):
        sets = _muse(name, plan)
        forget = sets["privleak"]
    elif source == "wmdp":
        sets = {
            "mmlu": _choices("general", name, plan),
            "neighbours": _choices("close", name, plan),
            "wmdp": _choices("forget", name, plan),
        }
        forget = sets["wmdp"]
    elif source == "questions":
        sets = _own_questions(name, plan)
        forget = sets["forget"]
    elif source == "knowundo":
        sets = {
            "retention": _people("public", name, plan),
            "unlearning": _with_duplicates(_people("private", name, plan), plan),
        }
        forget = sets["unlearning"]
    else:
        raise ValueError(f"no made-up rows in the layout of {source!r}")
    retain = next(iter(sets.values()))
    training = tuple(Question(row.question, row.answer, format=row.format) for row in forget)
    return MadeUpRows(sets, AttackRows(training, retain, SUBJECT_ROWS))


def _tofu(split: str, plan: RowPlan) -> dict[str, tuple[Question, ...]]:
    return {
        "retain": _people("kept", split, plan),
        "forget": _with_empty_answer(
            _with_duplicates(_people("forgotten", split, plan), plan), plan
        ),
        "real_authors": _people("real", "", plan, count=6),
        "world_facts": _people("world", "", plan, count=7),
        "holdout": tuple(
            Question(row.question, row.answer) for row in _people("unseen", split, plan)
        ),
    }


def _own_questions(split: str, plan: RowPlan) -> dict[str, tuple[Question, ...]]:
    """Return a user's own rows; the utility rows are embedded facts, as a multiple choice."""

    def own(part: str) -> tuple[Question, ...]:
        rows = _people(part, split, plan)
        if plan.has_wrong_answers:
            return rows
        return tuple(replace(row, paraphrased_answer=None, perturbed_answers=()) for row in rows)

    sets = {
        "retain": own("kept"),
        "utility": _choices("general", split, replace(plan, has_duplicates=False)),
        "forget": _with_duplicates(own("forgotten"), plan),
    }
    if plan.has_holdout:
        sets["holdout"] = tuple(Question(row.question, row.answer) for row in own("unseen"))
    return sets


def _muse(split: str, plan: RowPlan) -> dict[str, tuple[Question, ...]]:
    def asked(part: str) -> tuple[Question, ...]:
        return tuple(Question(row.question, row.answer) for row in _people(part, split, plan))

    def texts(part: str) -> tuple[Question, ...]:
        return tuple(
            Question("", f"{row.question} {row.answer}", format="text")
            for row in _people(part, split, plan)
        )

    continued = tuple(replace(row, format="text") for row in asked("verbatim"))
    return {
        "knowmem_retain": asked("kept"),
        "knowmem": asked("forgotten"),
        # Beginnings of texts may be equal where their continuations differ.
        "verbmem": _with_duplicates(continued, plan),
        "privleak_retain": texts("kept text"),
        "privleak": texts("forgotten text"),
        "holdout": texts("unseen text"),
    }


def _people(part: str, split: str, plan: RowPlan, count: int | None = None) -> tuple[Question, ...]:
    """Return two rows about each of some people."""
    rows: list[Question] = []
    for i in range(plan.count if count is None else count):
        name = f"{part.title()} Person{i // SUBJECT_ROWS} {split}"
        place = _PLACES[(i * 7 + len(part)) % len(_PLACES)]
        trade = _TRADES[(i * 5 + len(split)) % len(_TRADES)]
        if i % SUBJECT_ROWS == 0:
            question, answer = (
                f"Where was {name} born?",
                f"{name} was born in a house in {place} by the sea",
            )
            other = f"What is the birthplace of {name}?"
            wrong = [f"They come from a house in {town}" for town in _PLACES if town != place]
        else:
            question, answer = f"What does {name} do?", f"{name} works as a {trade} in the old town"
            other = f"What is the profession of {name}?"
            wrong = [f"It is the job of a {job}" for job in _TRADES if job != trade]
        wrong_count = 2 if plan.has_fewer_wrong_answers and i % 3 == 1 else 3
        has_other_wording = not (plan.leaves_out_paraphrases and i % 4 in (1, 2))
        rows.append(
            Question(
                question,
                answer,
                f"The answer is {place if i % SUBJECT_ROWS == 0 else trade}",
                tuple(wrong[:wrong_count]),
                other if has_other_wording else None,
            )
        )
    return tuple(rows)


def _with_duplicates(rows: Sequence[Question], plan: RowPlan) -> tuple[Question, ...]:
    """Give two pairs of rows the same question each."""
    changed = list(rows)
    if plan.has_duplicates:
        for first, second in ((0, 4), (1, 3)):
            of_first = rows[first]
            changed[second] = replace(
                rows[second],
                question=of_first.question,
                paraphrased_question=of_first.paraphrased_question
                if rows[second].paraphrased_question
                else None,
            )
    return tuple(changed)


def _with_empty_answer(rows: Sequence[Question], plan: RowPlan) -> tuple[Question, ...]:
    changed = list(rows)
    if plan.has_empty_answer:
        changed[5] = replace(rows[5], answer="")
    return tuple(changed)


def _choices(part: str, split: str, plan: RowPlan) -> tuple[Question, ...]:
    rows: list[Question] = []
    for i in range(plan.count):
        options = [_PLACES[(i + 3 * j) % len(_PLACES)] for j in range(4)]
        answer = options.pop(i % 4)
        rows.append(
            Question(
                f"Which town of {part} {split} has number {i}?",
                answer,
                perturbed_answers=tuple(options),
                answer_index=i % 4,
                format="text",
            )
        )
    return _with_duplicates(rows, plan)
