"""Means over the seeds of a setting, and their intervals (docs/concepts/statistics.md)."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev

from scipy.stats import t as student

from tests.oracle.read import Record
from tests.oracle.rows import Row
from tests.oracle.settings import settings_of

Bounds = tuple[float, float]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if a value is undefined, since a seed must not disappear in a mean."""
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return math.fsum(known) / len(known) if known else None


UNBOUNDED = {"privleak", "ed_score", "compressibility", "ks_n"}
"""Beginnings of columns whose numbers are no shares, probabilities or scores from 0 to 1."""
NO_BOUNDS = (-math.inf, math.inf)


def bounds_of(column: str) -> Bounds:
    """Return the least and the largest possible number of a column."""
    if column.startswith("log10_"):
        return -math.inf, 0.0
    return NO_BOUNDS if any(column.startswith(name) for name in UNBOUNDED) else (0.0, 1.0)


def interval_of(values: Sequence[float | None], bounds: Bounds = NO_BOUNDS) -> Bounds | None:
    """Return the 95 % interval of a mean: mean ± t · s / √n, t of Student with n − 1 degrees.

    Two values have their range in its place, and one has no interval. What lies beyond the bounds
    of the numbers is cut off, unless the mean itself lies beyond that bound.
    """
    ends = _uncut_interval(values)
    if ends is None:
        return None
    middle = mean([value for value in values if value is not None])
    low, high = ends
    least, largest = bounds
    if middle > least - 1e-9:
        low = max(low, least)
    if middle < largest + 1e-9:
        high = min(high, largest)
    return min(middle, low), max(middle, high)


def _uncut_interval(values: Sequence[float | None]) -> Bounds | None:
    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return None
    if len(known) == 2:
        return min(known), max(known)
    half = float(student.ppf(0.975, len(known) - 1)) * stdev(known) / math.sqrt(len(known))
    middle = mean(known)
    return middle - half, middle + half


def is_better_beyond_chance(first: dict[int, float], second: dict[int, float]) -> bool:
    """Whether the first side is larger by the interval of the differences over common seeds.

    Fewer than three seeds show nothing.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if len(differences) < 3:
        return False
    ends = interval_of(differences)
    return ends is not None and ends[0] > 0


@dataclass(frozen=True)
class Setting:
    """A setting after one epoch, with the rows of its seeds."""

    text: str
    """See `settings_of`."""
    epoch: int
    rows: tuple[Row, ...]
    """In the order of seeds."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why a seed has no row, by seed: `collapsed`, `stopped` or `patience`."""

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.rows[0].record.method

    @property
    def learning_rate(self) -> float | None:
        """Learning rate."""
        return self.rows[0].record.learning_rate

    @property
    def order_in_tables(self) -> tuple[str, float]:
        """Sort key of a method's settings in tables: hyperparameters, then the learning rate.

        No rule decides between settings that are exactly as good. Views show the last one.
        """
        method = self.rows[0].record.spec.get("method") or {}
        rate = -math.inf if self.learning_rate is None else self.learning_rate
        return json.dumps(method, sort_keys=True), rate

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds with a row."""
        return tuple(row.record.seed for row in self.rows)

    def mean(self, column: str) -> float | None:
        """Return the mean of a column; None if a seed has no number, or ended earlier."""
        return None if self.missing else mean_of(row.get(column) for row in self.rows)

    def interval(self, column: str) -> Bounds | None:
        """Return the interval of the mean."""
        if self.missing:
            return None
        return interval_of([row.get(column) for row in self.rows], bounds_of(column))

    def by_seed(self, column: str) -> dict[int, float]:
        """Return the numbers of a column by seed; empty if there is no mean of all seeds."""
        numbers: dict[int, float] = {}
        for row in self.rows:
            value = row.get(column)
            if value is not None and not self.missing:
                numbers[row.record.seed] = value
        return numbers


@dataclass(frozen=True)
class SettingsOfRuns:
    """The settings of all runs of a folder."""

    runs: tuple[Record, ...]
    rows: tuple[Row, ...]
    """Plain rows of runs."""

    @cached_property
    def texts(self) -> dict[str, str]:
        """A text by run that is equal for the seeds of one setting."""
        return settings_of(self.runs)

    def of(self, rows: Iterable[Row], seeds: Collection[int] | None = None) -> list[Setting]:
        """Return the settings among some rows.

        A run that collapsed, was stopped or ran out of patience before an epoch has no row there,
        and the mean is undefined. A run that failed is no evidence about its setting, also at
        epochs that it had reached: it is tried again, and the mean is over the others.

        Args:
            rows: Plain rows of runs, or rows under one variant.
            seeds: Seeds that the means are over. Defaults to all.
        """
        groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in rows:
            if row.record.status != "failed":
                groups[self.texts[row.record.id], row.epoch].append(row)
        found: list[Setting] = []
        for (text, epoch), members in groups.items():
            ordered = sorted(members, key=lambda row: (row.record.seed, row.record.id))
            missing = self._missing(text, epoch, seeds)
            found.append(Setting(text, epoch, tuple(ordered), missing))
        return found

    @cached_property
    def _places(self) -> set[tuple[str, int]]:
        return {(row.record.id, row.epoch) for row in self.rows}

    def _missing(self, text: str, epoch: int, seeds: Collection[int] | None) -> dict[int, str]:
        missing: dict[int, str] = {}
        for run in self.runs:
            is_seed = self.texts[run.id] == text and (seeds is None or run.seed in seeds)
            was_due = epoch in run.spec["evaluate_at"] and (run.id, epoch) not in self._places
            reason = _early_end(run)
            if is_seed and was_due and reason:
                missing[run.seed] = reason
        return missing


def _early_end(run: Record) -> str:
    """Return why a run may lack later epochs; empty for one that finished or failed."""
    if run.status in ("collapsed", "stopped"):
        return run.status
    return "patience" if run.ended else ""
