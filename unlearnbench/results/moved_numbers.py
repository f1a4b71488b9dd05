"""Report which numbers have changed since they were recorded or shown, and by how much.

If metrics or their code change, the numbers of an old folder are computed again. People who have
quoted the old numbers must learn that they have moved.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

_RELATIVE = 1e-9
"""Largest relative difference that another machine or library may make."""
_ABSOLUTE = 1e-12
"""The same for numbers that should be zero."""
_NAMED = 8
"""Most columns that a sentence names."""


@dataclass
class MovedColumn:
    """How the numbers of one column have moved."""

    rows: int = 0
    """Number of rows whose number has changed."""
    largest: float = 0.0
    """Largest absolute difference."""
    undefined: int = 0
    """Number of rows that had a number, and have none now."""

    @property
    def text(self) -> str:
        """The changes in words: `by up to 0.021 in 80 rows`."""
        parts: list[str] = []
        if self.rows:
            parts.append(f"by up to {self.largest:.2g} in {_rows(self.rows)}")
        if self.undefined:
            parts.append(f"no number any more in {_rows(self.undefined)}")
        return ", ".join(parts)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


@dataclass
class MovedNumbers:
    """The columns whose numbers have moved."""

    columns: dict[str, MovedColumn] = field(default_factory=dict[str, MovedColumn])
    """By name."""

    def add(
        self,
        before: Mapping[str, float | None],
        now: Mapping[str, float | None],
        leave_out: Collection[str] = (),
    ) -> None:
        """Compare the numbers of a row.

        A number that was undefined before has not moved: its metric is newer, or the model that it
        is compared with was evaluated later.

        Args:
            before: Earlier numbers by column.
            now: Today's numbers by column.
            leave_out: Columns whose change the user asked for.
        """
        for name, earlier in before.items():
            number = now.get(name)
            if earlier is None or name in leave_out or _is_equal(earlier, number):
                continue
            column = self.columns.setdefault(name, MovedColumn())
            if number is None:
                column.undefined += 1
            else:
                column.rows += 1
                column.largest = max(column.largest, abs(number - earlier))

    def merged_with(self, others: MovedNumbers) -> MovedNumbers:
        """Return the changes of both."""
        merged = MovedNumbers()
        for columns in (self.columns, others.columns):
            for name, column in columns.items():
                both = merged.columns.setdefault(name, MovedColumn())
                both.rows += column.rows
                both.undefined += column.undefined
                both.largest = max(both.largest, column.largest)
        return merged

    def note(self, labels: Mapping[str, str]) -> str:
        """Return a sentence for the user; empty if nothing has moved.

        Args:
            labels: The page's label of each column by its name, in the order of the sentence.
                Columns without a label follow by their names.
        """
        if not self.columns:
            return ""
        known = [name for name in labels if name in self.columns]
        names = [*known, *sorted(self.columns.keys() - labels.keys())]
        texts = [f"{labels.get(name, name)} {self.columns[name].text}" for name in names]
        listed = "; ".join(texts[:_NAMED])
        more = len(texts) - _NAMED
        if more > 0:
            listed += f"; and {more} more column{'s' * (more > 1)} (table.json has all)"
        return (
            "numbers have moved since they were recorded or last shown, because metrics, their "
            f"code or the models that they compare with have changed: {listed}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the columns by name, as `from_json` reads them."""
        return {name: vars(column) for name, column in sorted(self.columns.items())}

    @classmethod
    def from_json(cls, columns: Mapping[str, Any]) -> MovedNumbers:
        """Read what `to_json` has written.

        Raises:
            TypeError: If it has another form.
        """
        return cls({name: MovedColumn(**column) for name, column in columns.items()})


def _is_equal(earlier: float, number: float | None) -> bool:
    if number is None:
        return False
    return math.isclose(earlier, number, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
