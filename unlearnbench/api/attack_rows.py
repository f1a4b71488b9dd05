"""The rows that an attack may use, divided by the subjects that they are about."""

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from unlearnbench.api.benchmark import Question

Half = frozenset[tuple[str, str]]
"""The (question, answer) pairs of the rows of one half of the subjects."""


@dataclass(frozen=True)
class AttackRows:
    """The rows that an attack may use.

    Attributes:
        forget: Training rows to forget.
        retain: Training rows to keep.
        subject_rows: Number of consecutive forget rows about one subject. With 1, each row is a
            subject. Without effect if the rows name their subjects (`Question.subject`).
        answers: The model's own greedy answers to the plain questions, by question. Empty unless
            the attack declares `reads_answers`.
    """

    forget: tuple[Question, ...]
    retain: tuple[Question, ...]
    subject_rows: int = 1
    answers: Mapping[str, str] = field(default_factory=dict[str, str])

    def half(self, other: bool = False) -> tuple[Question, ...]:
        """Return the forget rows of every second subject, beginning with the first one.

        Args:
            other: Whether to return the rows of all other subjects instead.
        """
        rows: list[Question] = []
        for row, subject in zip(self.forget, self._subjects, strict=True):
            is_in_other_half = subject % 2 == 1
            if is_in_other_half == other:
                rows.append(row)
        return tuple(rows)

    @property
    def subject_count(self) -> int:
        """Number of subjects among the rows to forget."""
        return len(set(self._subjects))

    @cached_property
    def _subjects(self) -> tuple[int, ...]:
        """Number of the subject of each row to forget, in the order of the subjects' first rows.

        If rows do not name their subjects, each `subject_rows` consecutive rows are one subject. If
        they do, rows of one subject may be anywhere, and a row without a name is a subject of its
        own.
        """
        if not any(row.subject for row in self.forget):
            return tuple(i // self.subject_rows for i in range(len(self.forget)))
        number_of_subject: dict[str | int, int] = {}
        numbers: list[int] = []
        for i, row in enumerate(self.forget):
            number = number_of_subject.setdefault(row.subject or i, len(number_of_subject))
            numbers.append(number)
        return tuple(numbers)

    def in_half(self, row: Question, other: bool = False) -> bool:
        """Whether a row is about a subject of a half. The row may be one of an evaluation set.

        If rows do not name their subjects, a row is in the half that contains its question and
        answer.
        """
        if row.subject:
            return row.subject in self._named_subjects[int(other)]
        # `evaluation.question_key` exchanges the two wordings in rows of evaluation sets.
        wordings = row.question, row.paraphrased_question
        return any((wording, row.answer) in self._halves[int(other)] for wording in wordings)

    @cached_property
    def _halves(self) -> tuple[Half, Half]:
        """Questions and answers of the first half and of the other one."""

        def pairs(rows: Sequence[Question]) -> Half:
            return frozenset((row.question, row.answer) for row in rows)

        return pairs(self.half()), pairs(self.half(other=True))

    @cached_property
    def _named_subjects(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the subjects in the first half and in the other one."""

        def names(rows: Sequence[Question]) -> frozenset[str]:
            return frozenset(row.subject for row in rows if row.subject)

        return names(self.half()), names(self.half(other=True))

    def beside(
        self, row: Question, count: int, of: Literal["retain", "subject"], seed: int = 0
    ) -> tuple[Question, ...]:
        """Return at most `count` rows with a question to show beside `row`, in its format.

        Neither the row itself, in either wording, nor a row that contains its answer is returned.

        Args:
            row: The row that the attack asks about.
            count: Largest number of rows.
            of: `retain`: retain rows, drawn by `seed` and the question. `subject`: the other forget
                rows about the subject of `row`, in their order. There are none if `row` is not a
                training row.
            seed: Seed of the draw.
        """
        wordings = {_words(text) for text in (row.question, row.paraphrased_question) if text}
        answers = [_words(text) for text in (row.answer, row.paraphrased_answer) if text]

        def may_be_shown(candidate: Question) -> bool:
            has_other_form = candidate.format != row.format or not candidate.question
            if has_other_form or _words(candidate.question) in wordings:
                return False
            shown = _words(f"{candidate.question} {candidate.answer}")
            # With blanks around them, only whole words are found.
            return not any(f" {answer} " in f" {shown} " for answer in answers)

        if of == "subject":
            candidates: Iterator[Question] = iter(self._same_subject(wordings, answers))
        else:
            candidates = self._drawn(row, seed)
        shown_rows: list[Question] = []
        while len(shown_rows) < count:
            candidate = next(candidates, None)
            if candidate is None:
                break
            if may_be_shown(candidate):
                shown_rows.append(candidate)
        return tuple(shown_rows)

    def _same_subject(
        self, wordings: Collection[str], answers: Collection[str]
    ) -> Sequence[Question]:
        """Return all forget rows about the subject of the row with these wordings and answers."""
        subject_of_row: int | None = None
        for row, subject in zip(self.forget, self._subjects, strict=True):
            if _words(row.question) in wordings and _words(row.answer) in answers:
                subject_of_row = subject
                break
        pairs = zip(self.forget, self._subjects, strict=True)
        return [row for row, subject in pairs if subject == subject_of_row]

    def _drawn(self, row: Question, seed: int) -> Iterator[Question]:
        """Yield each retain row once, in an order that is drawn by the seed and the question.

        Rows are drawn one by one, because shuffling thousands of rows for every question would take
        seconds.
        """
        generator = random.Random(f"{seed} {row.question}")
        drawn: set[int] = set()
        while len(drawn) < len(self.retain):
            i = generator.randrange(len(self.retain))
            if i not in drawn:
                drawn.add(i)
                yield self.retain[i]


@lru_cache(maxsize=65_536)  # each row is compared with many others
def _words(text: str) -> str:
    """Return the words of a text in small letters, without punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))
