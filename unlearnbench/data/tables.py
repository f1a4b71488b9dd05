"""TOFU's tables checked against each other; every error names the file and line of its rows."""

from __future__ import annotations

from dataclasses import dataclass

from unlearnbench.data.benchmark import Question
from unlearnbench.errors import DataError


@dataclass(frozen=True)
class Table:
    """A checked table; `places` runs parallel to `rows`."""

    name: str
    places: tuple[str, ...]
    rows: tuple[Question, ...]


def check_width(table: Table) -> None:
    """Every row has as many wrong answers: their losses are an array."""
    count = len(table.rows[0].perturbed_answers)
    for place, row in zip(table.places, table.rows, strict=True):
        if len(row.perturbed_answers) != count:
            raise DataError(
                f"{place}: column 'perturbed_answer' has {len(row.perturbed_answers)} wrong "
                f"answers, and {count} at {table.places[0]}; every row of a set has as many"
            )


def check_disjoint(forget: Table, retain: Table) -> None:
    """No question is forgotten twice, or forgotten and kept: the numbers would mean neither."""
    first: dict[str, str] = {}
    for place, row in zip(forget.places, forget.rows, strict=True):
        other = first.setdefault(_asked(row), place)
        if other != place:
            raise DataError(f"{place}: the question of {other} again; remove one of the two rows")
    for place, row in zip(retain.places, retain.rows, strict=True):
        other = first.get(_asked(row), "")
        if other:
            raise DataError(
                f"{place}: its question is to be forgotten, at {other}; a row is forgotten or "
                "kept, so remove one of the two"
            )


def _asked(row: Question) -> str:
    return " ".join(row.question.split())


def check_partition(full: Table, forget: Table, retain: Table) -> None:
    """Forget rows and retain rows together are the full set's."""
    sizes = len(forget.rows), len(retain.rows)
    if sum(sizes) != len(full.rows):
        raise DataError(
            f"{forget.name} has {sizes[0]} rows and {retain.name} {sizes[1]}, together "
            f"{sum(sizes)}, but {full.name} has {len(full.rows)}; a file is cut off or of another "
            f"version"
        )
    known = set(full.rows)
    for table in (forget, retain):
        for place, row in zip(table.places, table.rows, strict=True):
            if row not in known:
                raise DataError(
                    f"{place}: this row is not in {full.name}; use files of one version"
                )


def check_parallel(forget: Table, perturbed: Table) -> None:
    """The evaluation rows are the forget rows, in the same order."""
    if len(forget.rows) != len(perturbed.rows):
        raise DataError(
            f"{perturbed.name} has {len(perturbed.rows)} rows, but {forget.name} "
            f"{len(forget.rows)}; a file is cut off or of another version"
        )
    for i, (row, variant) in enumerate(zip(forget.rows, perturbed.rows, strict=True)):
        for column in ("question", "answer"):
            if getattr(row, column) != getattr(variant, column):
                raise DataError(
                    f"{perturbed.places[i]}: column {column!r} differs from that of "
                    f"{forget.places[i]}; use files of one version"
                )
