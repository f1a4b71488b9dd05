"""Your own texts, from tables.

    data: {source: texts, forget: forget.txt, retain: retain.txt}

Whole texts are learned and unlearned. They are evaluated in two ways:

    forget_text, retain_text, holdout    whole, for extraction strength and membership inference
    forget, retain                       as a beginning that the model continues, for ROUGE, as in
                                         MUSE (Shi et al. 2024, arXiv:2407.06460)

A text is divided after half of its words, and after its first 100 words at the latest. In scripts
without spaces each character is a word. The first 64 tokens after that place are scored and
generated. A text of fewer than 8 words is evaluated only whole: its continuation would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from unlearnbench.api.benchmark import MetricUse, Question
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.base.deferred_warnings import warn_once
from unlearnbench.base.errors import DataError
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.tables import TableRow
from unlearnbench.benchmarks.facts import facts
from unlearnbench.benchmarks.own_columns import named_column, text_column
from unlearnbench.benchmarks.own_rows import OwnRows, OwnSplit, Part
from unlearnbench.benchmarks.own_tables import Table, subject_of, words_of
from unlearnbench.benchmarks.read_tables import ReadTable
from unlearnbench.stats.words import word_starts

FEWEST_WORDS = 8
"""Smallest number of words of a text that is divided: 4 are given, and at least 4 follow."""
BEGINNING_WORDS = 100
"""Largest number of words of a beginning. In most languages it is as long as MUSE's prompts of 200
tokens."""
CONTINUATION_TOKENS = 64
"""Number of tokens of a continuation that are scored, and number of tokens that are generated."""


class Texts(OwnRows):
    """Your own texts: files, folders or the hub, one table or several."""

    roles: ClassVar[Mapping[str, Role]] = {
        "retain": "retain",  # beginnings that are continued, like `forget`
        "retain_text": "retain",
        "utility": "general",
        "forget": "forget",
        "forget_text": "forget",
        "holdout": "holdout",
    }

    source: str = "texts"
    text: str | None = Field(
        default=None,
        description="column of texts; default: `text`, `body`, `content`, …, or the only column",
    )

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return how much is left of the texts, what is kept, and attacks on whole texts."""
        divided = ("retain", "forget")
        continued: tuple[str, ...] = divided
        if self.utility is not None and not self.uses_facts:
            continued = ("retain", "utility", "forget")
        whole = ("retain_text", "forget_text")
        uses = [
            *self.shared_metrics(),
            MetricUse("extraction-strength", (*divided, *whole)),
            MetricUse("exact-memorization", (*divided, *whole)),
            MetricUse("rouge", continued),
            MetricUse("probability", (*continued, *whole)),
        ]
        if self.uses_facts:
            options = {"epsilon": profile.options_epsilon}
            uses += [
                MetricUse("option-probability", ("utility",), options, name="probability"),
                MetricUse("choice-accuracy", ("utility",)),
            ]
        if self.holdout is not None:
            attacked = {"members": "forget_text", "control": "retain_text"}
            uses += [MetricUse(attack, settings=attacked) for attack in ATTACKS]
        return tuple(uses)

    def evaluation_sets(self, split: OwnSplit) -> Mapping[str, tuple[Question, ...]]:
        """Return whole texts, and beginnings with continuations."""
        return {
            "retain": divided_texts(split.evaluated_retain, "retain"),
            "retain_text": split.evaluated_retain,
            "forget": divided_texts(split.forget, "forget"),
            "forget_text": split.forget,
            "holdout": split.holdout,
        }

    def evaluated_facts(self) -> tuple[Question, ...]:
        """Return the embedded facts as rows of a multiple choice."""
        return tuple(
            replace(fact, answer_index=i % (1 + len(fact.perturbed_answers)))
            for i, fact in enumerate(self.trained_facts())
        )

    def trained_facts(self) -> tuple[Question, ...]:
        """Return the embedded facts as texts with a question and an answer."""
        return tuple(
            replace(
                fact,
                question=f"Question: {fact.question}\nAnswer:",
                format="text",
                answer=f" {fact.answer}",
                perturbed_answers=tuple(f" {answer}" for answer in fact.perturbed_answers),
            )
            for fact in facts("world_facts")
        )

    def evaluated_utility(self, rows: Sequence[Question]) -> tuple[Question, ...]:
        """Return beginnings with continuations."""
        return divided_texts(rows, "utility")

    def columns_as_text(self, table: Table) -> Sequence[str]:
        """Return the columns of texts and of subjects."""
        text = self._column(table, is_own=table.setting != "data.utility")
        if self.subject is None or self.subject not in table.columns:
            return [text]
        return [text, self.subject]

    def read_rows(
        self,
        table: Table,
        part: Part,
        rows: Iterable[TableRow] | None = None,
    ) -> ReadTable:
        """Make texts of a table."""
        column = self._column(table, is_own=part != "utility")
        subject = self._subject_column(table, is_required=part == "forget")
        read = table.read(self.columns_as_text(table)) if rows is None else rows
        texts = tuple(_row(row, column, subject) for row in read)
        shown = f"text: {column}" + (f", subject: {subject}" if subject else "")
        return ReadTable(table.label, texts, f"with the columns {shown}")

    def _subject_column(self, table: Table, *, is_required: bool) -> str | None:
        """Return the column of subjects; None if none is named, or if the table may lack it."""
        name = self.subject
        if name is None or not (is_required or name in table.columns):
            return None
        return named_column("subject", name, table.columns, table.label)

    def _column(self, table: Table, *, is_own: bool = True) -> str:
        """Return the column of texts.

        Args:
            table: The table.
            is_own: Whether the name in the configuration is about this table.
        """
        name = self.text if is_own or self.text in table.columns else None
        return text_column(name, table.columns, table.label)


def _row(row: TableRow, column: str, subject: str | None) -> Question:
    """Make a text.

    Args:
        row: Row of a table.
        column: Column of texts.
        subject: Column of subjects, if there is one.

    Raises:
        DataError: The value is no text.
    """
    text = words_of(row, column).strip()
    name = subject_of(row, subject) if subject else ""
    # A whole text and its continuation need the same subject: an attack that trains on some texts
    # then does not measure their continuations. So a text without a subject is its own.
    name = name or content_hash(text)
    return Question("", text, format="text", subject=name, place=row.place)


ATTACKS = ("mia-loss", "mia-zlib", "mia-min-k", "mia-min-k-plus-plus")
"""Membership inference attacks, on whole texts."""


def divided(text: str) -> tuple[str, str] | None:
    """Return the beginning of a text, and its continuation; None if the text is too short.

    Blanks between the two belong to the continuation, because most tokenizers join a blank with the
    word after it.
    """
    starts = word_starts(text)
    if len(starts) < FEWEST_WORDS:
        return None
    place = starts[min(len(starts) // 2, BEGINNING_WORDS)]
    beginning = text[:place].rstrip()
    return beginning, text[len(beginning) :]


def divided_texts(rows: Sequence[Question], part: str) -> tuple[Question, ...]:
    """Return the texts that are long enough, as beginnings with continuations.

    Args:
        rows: Texts.
        part: What they are for, for messages.

    Raises:
        DataError: If no text is long enough.
    """
    evaluated: list[Question] = []
    for row in rows:
        parts = divided(row.answer)
        if parts is None:
            continue
        beginning, continuation = parts
        evaluated.append(
            replace(
                row,
                question=beginning,
                answer=continuation,
                max_new_tokens=CONTINUATION_TOKENS,
                max_answer_tokens=CONTINUATION_TOKENS,
            )
        )
    too_short = len(rows) - len(evaluated)
    rule = f"a text of fewer than {FEWEST_WORDS} words has no continuation to evaluate"
    if not evaluated:
        raise DataError(
            f"data.{part}: all {len(rows)} texts are too short: {rule}; join texts, or use the "
            "benchmark `questions`"
        )
    if too_short:
        warn_once(f"data.{part}: {too_short} of {len(rows)} texts are evaluated only whole: {rule}")
    return tuple(evaluated)
