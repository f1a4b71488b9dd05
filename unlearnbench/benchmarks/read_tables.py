"""Tables of the user's own as rows, and the checks across tables.

A row is forgotten or retained, never both, and no model has seen a holdout row. Two rows are equal
if a model reads the same texts in both (`row_key`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from unlearnbench.api.benchmark import Question
from unlearnbench.base.deferred_warnings import warn_once
from unlearnbench.base.errors import DataError


class RowKey(NamedTuple):
    """All texts of a row that a model reads, without extra blanks."""

    question: str
    answer: str
    examples: tuple[tuple[str, str], ...]
    """Questions and answers that stand before the question."""
    system: str


def row_key(row: Question) -> RowKey:
    """Return what makes two rows equal."""
    examples = tuple((_plain(question), _plain(answer)) for question, answer in row.examples)
    return RowKey(_plain(row.question), _plain(row.answer), examples, _plain(row.system or ""))


def _plain(text: str) -> str:
    return " ".join(text.split())


@dataclass
class ReadTable:
    """The rows of a table."""

    label: str
    """Name of the table in messages."""
    rows: tuple[Question, ...]
    note: str = ""
    """A line for people that says which columns were taken."""

    @cached_property
    def keys(self) -> list[RowKey]:
        """The key of each row."""
        return [row_key(row) for row in self.rows]


@dataclass
class ReadTables:
    """All tables of a benchmark but that of utility rows, by split.

    A table that was named for all splits stands under each of them.
    """

    forget: dict[str, ReadTable] = field(default_factory=dict[str, ReadTable])
    retain: dict[str, ReadTable] = field(default_factory=dict[str, ReadTable])
    holdout: dict[str, ReadTable] = field(default_factory=dict[str, ReadTable])
    """Empty if there are no holdout rows."""
    notes: list[str] = field(default_factory=list[str])
    """Lines for people on what was read."""


def spaced(rows: Sequence[Question], most: int) -> tuple[Question, ...]:
    """Return at most `most` rows, evenly spaced, because tables are often sorted by a subject."""
    if len(rows) <= most:
        return tuple(rows)
    return tuple(rows[i * len(rows) // most] for i in range(most))


def pooled(parts: Iterable[Sequence[Question]]) -> tuple[Question, ...]:
    """Return the rows of all parts, each as often as the part that has it most often."""
    rows: list[Question] = []
    counts = Counter[RowKey]()
    for part in parts:
        counts_in_part = Counter[RowKey]()
        for row in part:
            key = row_key(row)
            counts_in_part[key] += 1
            if counts_in_part[key] > counts[key]:
                counts[key] += 1
                rows.append(row)
    return tuple(rows)


def without(rows: Iterable[Question], excluded: Iterable[Question]) -> tuple[Question, ...]:
    """Return the rows that equal none of the excluded rows."""
    excluded_keys = {row_key(row) for row in excluded}
    return tuple(row for row in rows if row_key(row) not in excluded_keys)


def warn_of_duplicates(table: ReadTable) -> None:
    """Warn if rows of a table are equal."""
    first_rows: dict[RowKey, Question] = {}
    duplicates: list[tuple[Question, Question]] = []
    for key, row in zip(table.keys, table.rows, strict=True):
        if key in first_rows:
            duplicates.append((first_rows[key], row))
        else:
            first_rows[key] = row
    if not duplicates:
        return
    one, other = duplicates[0]
    count = counted(len(duplicates), "row is", "rows are")
    warn_once(
        f"{table.label}: {count} there more than once, such as {one.place} and {other.place}; "
        "each counts as often as it is there, so remove the others if that is not meant"
    )


def check_apart(tables: ReadTables, split: str, utility: ReadTable | None) -> None:
    """Check that no row of a split is in two tables of which only one may have it.

    Args:
        tables: Tables of all splits.
        split: Name of the split.
        utility: Utility rows, if there are any.

    Raises:
        DataError: A row is in two such tables.
    """
    forget = tables.forget[split]
    retain = tables.retain[split]
    fix = "a row is forgotten or retained, never both: remove these rows from one of the two"
    _check_pair(forget, retain, "forget and retain", fix)
    if utility is not None:
        fix = "a row to be forgotten cannot be kept: remove one of the two"
        _check_pair(forget, utility, "forget and utility", fix)
    if tables.holdout:
        holdout = tables.holdout[split]
        fix = "no model may have seen a holdout row: remove these rows from holdout"
        _check_pair(forget, holdout, "forget and holdout", fix)
        _check_pair(retain, holdout, "retain and holdout", fix)


def _check_pair(one: ReadTable, other: ReadTable, parts: str, fix: str) -> None:
    """Raise DataError if two tables have equal rows.

    Args:
        one: A table.
        other: Another table, or the same table for another part.
        parts: What the tables are for, in words.
        fix: What to do, for the message.
    """
    first_rows: dict[RowKey, Question] = {}
    for key, row in zip(one.keys, one.rows, strict=True):
        first_rows.setdefault(key, row)
    shared: list[tuple[Question, Question]] = []
    for key, row in zip(other.keys, other.rows, strict=True):
        if key in first_rows:
            shared.append((first_rows[key], row))
    if not shared:
        return
    row, equal_row = shared[0]
    count = counted(len(shared), "row of", "rows of")
    are = "is" if len(shared) == 1 else "are"
    example = equal_row.place
    if row.place != equal_row.place:
        example += f", which is {row.place}"
    # One file may be named for both parts, or be one table with marked rows.
    is_one_table = one.label == other.label
    where = f"in both {parts}" if is_one_table else f"in {one.label} as well"
    raise DataError(f"{count} {other.label} {are} {where}, such as {example}; {fix}")


def counted(count: int, one: str, several: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`."""
    return f"{count} {one if count == 1 else several}"
