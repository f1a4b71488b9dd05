"""Settings: runs that differ only in their seed, averaged at each epoch.

A *panel* is one model and split, on which methods are compared. Everything is computed from the
rows of a table, in memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.api.benchmark import Headline, SplitKey, split_order, split_percent
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.table import Numbers, TableRow
from unlearnbench.stats.t_interval import Interval, interval_of_all

PanelKey = tuple[str, SplitKey]
"""Model and split."""


def panel_label(model: str, split: SplitKey) -> str:
    """Return `tiny, forget 10 %`."""
    return f"{model}, {split_percent(split)}"


@dataclass(frozen=True)
class OnPanel:
    """Model and split that a value belongs to."""

    model: str
    forget_fraction: SplitKey

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(*self.panel)

    @property
    def panel(self) -> PanelKey:
        """Model and split."""
        return self.model, self.forget_fraction


def panel_order(panel: PanelKey) -> tuple[str, tuple[bool, SplitKey]]:
    """Return a sort key of panels."""
    return panel[0], split_order(panel[1])


def headline_of_rows(rows: Iterable[TableRow]) -> Headline:
    """Return the headline that all rows of a table share."""
    return next((row.headline for row in rows), None) or default_headline()


def unit_of_rows(rows: Iterable[TableRow]) -> Unit:
    """Return what all rows of a table count their moments in: epochs, or steps."""
    return next((row.unit for row in rows), Unit.EPOCH)


@dataclass(frozen=True, eq=False)
class Setting(OnPanel):
    """One setting after one epoch (or some steps), averaged over its seeds."""

    method: str
    family: str
    learning_rate: float | None
    epoch: int
    rows: tuple[TableRow, ...]
    """One per seed."""
    metrics: Mapping[str, float | None]
    """Means; None if any seed has no number: a collapsed seed must not disappear in a mean."""
    why_not: str = ""
    """Why no mean is defined although there are rows: another seed ended before this epoch."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def headline(self) -> Headline:
        """Headline of the benchmark."""
        return headline_of_rows(self.rows)

    @property
    def unit(self) -> Unit:
        """What `epoch` counts: epochs, or steps in a sweep by steps."""
        return unit_of_rows(self.rows)

    @property
    def when(self) -> str:
        """`epoch 3`; in a sweep by steps `step 75`."""
        return self.unit.at(self.epoch)

    @property
    def kept(self) -> float | None:
        """Mean of what is kept, by the headline."""
        return self.metrics.get(self.headline.kept.column)

    @property
    def forgotten(self) -> float | None:
        """Mean of what is forgotten, by the headline."""
        return self.metrics.get(self.headline.forgotten.column)

    @property
    def key(self) -> tuple[str, SplitKey, str, float | None, str, int]:
        """Identity of the setting within a table."""
        setting_id = self.rows[0].setting_id if self.rows else ""
        return (*self.panel, self.method, self.learning_rate, setting_id, self.epoch)

    @property
    def trajectory(self) -> tuple[str, SplitKey, str, float | None, str]:
        """What all epochs of the setting share. Labels of several tables may be equal."""
        return self.key[:-1]

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Return the smallest and largest value over seeds; None for fewer than two numbers."""
        values = list(self.by_seed(metric).values())
        return (min(values), max(values)) if len(values) > 1 else None

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the number of each seed that has one.

        The result is empty if another seed of the setting ended before this epoch, see `why_not`.
        """
        if self.why_not:
            return {}
        numbers: dict[int, float] = {}
        for row in self.rows:
            value = row.metrics[metric]
            if value is not None:
                numbers[row.seed] = value
        return numbers

    def interval(self, metric: str) -> Interval | None:
        """Return the mean's t interval over seeds, within the bounds of the metric.

        Returns:
            None for one seed, and if a seed has no number.
        """
        if self.why_not or not self.rows:
            return None
        bounds = self.rows[0].schema.column(metric).bounds
        return interval_of_all([row.metrics[metric] for row in self.rows], bounds)


def is_evidence(row: TableRow) -> bool:
    """Whether a row of a run says something about the run's setting.

    A run that failed says nothing, also at epochs that it had reached: it is tried again.
    """
    return row.kind == "run" and row.status != "failed"


def average_seeds(rows: Iterable[TableRow], ends: Iterable[EarlyEnd] = ()) -> tuple[Setting, ...]:
    """Average the runs that differ only in their seed.

    Args:
        rows: Rows of a table. Rows of start and retain models and of failed runs are left out.
        ends: Runs that ended early. A setting has no mean at an epoch that one of its seeds did not
            reach, since the mean of the others would hide the seed.

    Returns:
        A setting for each epoch, in the table's order.
    """
    ends_of_setting: dict[tuple[Any, ...], list[EarlyEnd]] = defaultdict(list)
    for end in ends:
        ends_of_setting[end.setting].append(end)

    def place(row: TableRow) -> tuple[Any, ...]:
        return (*row.place_of_setting, row.epoch)

    runs = [row for row in rows if is_evidence(row)]
    runs.sort(key=lambda row: (*place(row), row.seed, row.run_id))
    settings: list[Setting] = []
    for _, group in groupby(runs, key=place):
        members = tuple(group)
        first = members[0]
        setting = (*first.panel, first.family, first.learning_rate, first.setting_id)
        why_not = _missing_seeds(members, ends_of_setting.get(setting, ()))
        settings.append(
            Setting(
                model=first.model,
                forget_fraction=first.forget_fraction,
                method=first.method,
                family=first.family,
                learning_rate=first.learning_rate,
                epoch=first.epoch,
                rows=members,
                metrics=_means(members, is_defined=not why_not),
                why_not=why_not,
            )
        )
    return tuple(settings)


def _missing_seeds(rows: Sequence[TableRow], ends: Sequence[EarlyEnd]) -> str:
    """Return which other seeds of a setting ended before the rows' epoch; empty if none did."""
    seeds = {row.seed for row in rows}
    epoch = rows[0].epoch
    missing = [end for end in ends if end.seed not in seeds and end.lacks(epoch)]
    missing.sort(key=lambda end: end.seed)
    return "; ".join(dict.fromkeys(end.text for end in missing))


def _means(rows: Sequence[TableRow], *, is_defined: bool) -> Mapping[str, float | None]:
    """Average each number over the rows of a setting; None for each if no mean is defined."""
    if not is_defined:
        return Numbers(dict.fromkeys(rows[0].metrics))
    if len(rows) == 1:
        return rows[0].metrics
    return Numbers({name: mean_of([row.metrics[name] for row in rows]) for name in rows[0].metrics})


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing, or if there are no values."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None
