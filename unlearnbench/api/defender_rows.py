"""The rows from which a method at inference time writes its prompts."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Self

import regex

from unlearnbench.api.benchmark import Dataset, Question, SplitKey
from unlearnbench.stats.word_similarity import WordIndex
from unlearnbench.stats.words import unicode_words

_CAPITALISED = regex.compile(r"\p{Lu}[\p{L}\p{M}-]*(?: \p{Lu}[\p{L}\p{M}-]*)+")
"""Two or more words with a capital letter, such as `Did Ada Lovelace`."""


@dataclass(frozen=True)
class DefenderRows:
    """The rows that a method at inference time may use: all training rows, and no others.

    The method answers every question by the same rule. It does not know whether a question is about
    a row to forget, and it knows no answer but those of its rows.
    """

    forget: tuple[Question, ...]
    """Training rows to forget."""
    retain: tuple[Question, ...]
    """Training rows to keep."""
    refusals: tuple[str, ...] = ()
    """Answers such as "I don't know"."""
    subject_rows: int = 1
    """Number of consecutive forget rows about one subject, see `Dataset.subject_rows`."""
    seed: int = 0
    """The run's seed."""
    has_system_message: bool = False
    """Whether the model's template has system messages."""

    @classmethod
    def of(cls, benchmark: Dataset, key: SplitKey, seed: int, *, has_system_message: bool) -> Self:
        """Return the rows of a split that a method may use."""
        split = benchmark.splits[key]
        return cls(
            split.forget,
            split.retain,
            benchmark.refusals,
            benchmark.subject_rows,
            seed,
            has_system_message,
        )

    def nearest_forget(self, row: Question) -> Iterator[int]:
        """Yield the index of each forget row that can be shown beside a row, the nearest first.

        A forget row is near if its question shares rare words with a question of the prompt, see
        `WordIndex`. Questions of examples and of earlier turns count, because an attack may ask
        there.
        """
        for index in self._forget_index.most_alike([text for text, _ in _turns(row)]):
            if _can_be_shown(self.forget[index], row):
                yield index

    def first_forget(self, row: Question) -> Iterator[int]:
        """Yield the index of each forget row that can be shown beside a row, in the rows' order."""
        return _in_order(self.forget, row)

    def first_retain(self, row: Question) -> Iterator[int]:
        """Yield the index of each retain row that can be shown beside a row, in the rows' order."""
        return _in_order(self.retain, row)

    def drawn_forget(self, row: Question) -> Iterator[int]:
        """Yield the index of each forget row that can be shown beside a row, in drawn order.

        The order depends only on the run's seed and on the question.
        """
        return self._drawn(self.forget, row, "forget")

    def drawn_retain(self, row: Question) -> Iterator[int]:
        """Yield the index of each retain row that can be shown beside a row, in drawn order."""
        return self._drawn(self.retain, row, "retain")

    def _drawn(self, rows: Sequence[Question], row: Question, name: str) -> Iterator[int]:
        generator = random.Random(f"{self.seed} {name} {row.question}")
        # Rows are drawn one by one, because a shuffle of thousands of rows for every question
        # would take seconds.
        drawn: set[int] = set()
        while len(drawn) < len(rows):
            index = generator.randrange(len(rows))
            if index not in drawn:
                drawn.add(index)
                if _can_be_shown(rows[index], row):
                    yield index

    @cached_property
    def alike_retain_answer(self) -> Callable[[Question], str | None]:
        """A function that returns a wrong answer of the right kind to a forget row's question.

        It is the answer of the retain row with the most alike question, among the answers in other
        words than the true one: another place of birth, if a place of birth is asked for. None if
        there is no such answer.
        """
        return cache(self._alike_retain_answer)

    def _alike_retain_answer(self, forgotten: Question) -> str | None:
        for index in self._retain_index.most_alike([forgotten.question]):
            kept = self.retain[index]
            if kept.question and not has_same_words(kept.answer, forgotten.answer):
                return kept.answer
        return None

    def next_forget_answer(self, index: int) -> str | None:
        """Return the answer of the next forget row whose answer has other words; None for none.

        The first row follows the last one.
        """
        answer = self.forget[index].answer
        for other in (*self.forget[index + 1 :], *self.forget[:index]):
            if not has_same_words(other.answer, answer):
                return other.answer
        return None

    @cached_property
    def _forget_index(self) -> WordIndex:
        return WordIndex([row.question for row in self.forget])

    @cached_property
    def _retain_index(self) -> WordIndex:
        return WordIndex([row.question for row in self.retain])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the subjects to forget, in the order of their first rows.

        If the rows name their subjects (`Question.subject`), these are the names. If not, but a
        known number of consecutive rows is about one subject, its name is the run of capitalised
        words that is in most of these rows, the longest one of several. It has at least two words,
        is in half of the rows, and is in no retain row. A subject without such words has no name.
        """
        named = dict.fromkeys(row.subject for row in self.forget if row.subject)
        if named or self.subject_rows == 1:
            return tuple(named)
        texts_to_keep = "\n".join(f"{row.question} {row.answer}" for row in self.retain)
        names: dict[str, None] = {}
        for first in range(0, len(self.forget), self.subject_rows):
            rows_of_subject = self.forget[first : first + self.subject_rows]
            name = _common_name(rows_of_subject, texts_to_keep)
            if name:
                names[name] = None
        return tuple(names)


def _turns(row: Question) -> tuple[tuple[str, str], ...]:
    """Return the questions of a prompt with their answers. The last answer is not known."""
    return (*row.examples, (row.question, ""))


def _in_order(rows: Sequence[Question], row: Question) -> Iterator[int]:
    """Yield the index of each row that can be shown beside another row."""
    for index, candidate in enumerate(rows):
        if _can_be_shown(candidate, row):
            yield index


def _can_be_shown(candidate: Question, row: Question) -> bool:
    """Whether a row can be an example in front of another row: a question in the same format."""
    return candidate.format == row.format and bool(candidate.question)


def has_same_words(text: str, other: str) -> bool:
    """Whether two texts have the same words in the same order, whatever their punctuation is."""
    return unicode_words(text) == unicode_words(other)


def is_asked(candidate: Question, row: Question) -> bool:
    """Whether a row asks the question of a candidate, in any turn."""
    return any(has_same_words(candidate.question, question) for question, _ in _turns(row))


def _common_name(rows: Sequence[Question], texts_to_keep: str) -> str:
    """Return the name that is in most of the rows, see `DefenderRows.names`; empty for none."""
    rows_with: Counter[str] = Counter()
    for row in rows:
        parts: set[str] = set()
        for match in _CAPITALISED.finditer(f"{row.question} {row.answer}"):
            words = match[0].split(" ")
            for start in range(len(words) - 1):
                for end in range(start + 2, len(words) + 1):
                    parts.add(" ".join(words[start:end]))
        rows_with.update(parts)
    names = sorted(rows_with, key=lambda name: (-rows_with[name], -len(name), name))
    for name in names:
        if 2 * rows_with[name] < len(rows):
            break
        if name not in texts_to_keep:
            return name
    return ""
