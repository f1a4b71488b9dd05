"""Everything that the views of a sweep's folder have to say, computed from its records alone.

`Claims.of(folder)` is the only entry point. A claim is a value, not a text: a view that shows a
number rounds it, and the comparison decides how many digits the view must have right. None means
that the view must show no number.

Terms: a *run* is one training, named by its id. A *setting* is everything that a run depends on
except its seed, after one epoch. A *variant* is an evaluation under an attack, `relearning@13`,
and `""` without one. A *panel* is a model and a split. A *column* is a number's name as in
`results.csv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.read import read_folder
from tests.oracle.rows import Rows

NumberKey = tuple[str, int, str, str]
"""Run, epoch, variant and column of a number; the "run" may be a start or retain model's record."""
Split = float | str
"""Fraction of the rows to forget, or the name of the split."""
Bounds = tuple[float, float]
"""Lower and upper end of an interval."""


@dataclass(frozen=True)
class MeanClaim:
    """A mean over the seeds of a setting."""

    mean: float | None
    """None if one of the runs has no number, or ended before the epoch (see
    `SettingClaim.missing`)."""
    interval: Bounds | None
    """95 % t interval over seeds; with two seeds the two values; None with one seed, or without
    a mean."""


@dataclass(frozen=True)
class SettingClaim:
    """A setting after one epoch."""

    method: str
    """Name of the method with its retain term and modifiers, without hyperparameters: `npo+nll`."""
    learning_rate: float | None
    epoch: int
    runs: tuple[str, ...]
    """Ids of its runs that have a row at this epoch, in the order of their seeds."""
    seeds: tuple[int, ...]
    """Their seeds."""
    means: Mapping[str, MeanClaim]
    """By column of `results.csv`."""
    missing: Mapping[int, str]
    """Why the means are undefined, by seed: `collapsed`, `stopped` or `patience` of a run that
    ended earlier."""

    @property
    def key(self) -> tuple[frozenset[str], int]:
        """The runs and the epoch, which no other setting has."""
        return frozenset(self.runs), self.epoch


@dataclass(frozen=True)
class LastingClaim:
    """How much of what a setting removed lasts under attacks, as `lasting` in docs says."""

    score: float | None
    """The worst over attacks and points; None without a score."""
    variant: str | None
    """The variant of the worst score."""
    interval: Bounds | None
    """95 % t interval over seeds of the worst score."""
    reason: str | None
    """Kind of reason why there is no score: `not attacked`, `utility`, `missing attack`, `ended
    early`, `no yardstick`, `rows left out`, `retain not attacked`, `start not evaluated`, `too
    little removed`, `undefined`. None with a score."""
    by_variant: Mapping[str, float | None]
    """Mean over seeds by variant, without points before the first step of an attack."""
    before: Mapping[str, float | None]
    """Mean over seeds of the number before each variant, on the rows that the variant asked."""
    after: Mapping[str, float | None]
    """Mean over seeds of the number under each variant."""
    retain: Mapping[str, tuple[float | None, float | None]]
    """The retain model's number before each variant and under it."""
    start: Mapping[str, tuple[float | None, float | None]]
    """The start model's."""
    measured_by: Mapping[str, tuple[str, str] | None]
    """Columns before and under each variant; None if the variant can move no number."""


@dataclass(frozen=True)
class EntryClaim:
    """A method on a panel, or one entry of the configuration if several entries of the method
    have a choice."""

    method: str
    entry: str
    """Name of the entry; the method's without several entries of it."""
    shown: SettingClaim | None
    """What every view shows: the best setting, or under `select` or `tune` the choice, on its
    reporting seeds. None without one. It has no runs if the reporting runs do not exist."""
    chosen: SettingClaim | None
    """The choice on the seeds of the choice; None without `select` or `tune`, and without a
    choice."""
    candidates: int
    """Settings with all seeds of the choice; 0 without `select` and `tune`."""
    place: int | None
    """Place of `shown`, which several methods may share; None without numbers."""
    lasting: LastingClaim | None
    """Of `shown`; None without `shown`, and in a sweep without attacks."""


@dataclass(frozen=True)
class PanelClaim:
    """One model and split."""

    model: str
    split: Split
    kept: str
    """Column of what is kept, by the headline: `model_utility`."""
    forgotten: str
    """Column of what is forgotten, by the headline: `log10_forget_quality`."""
    start: Mapping[str, float | None]
    """Numbers of the start model by column; empty without one."""
    retain: Mapping[str, float | None]
    """Numbers of the retain model by column; empty without one."""
    least_kept: float | None
    """Smallest number of what is kept that a best setting has; None without a start model."""
    fault: str | None
    """Kind of fault of the start model, from which nothing is best: `knows nothing`, `nothing to
    forget`."""
    settings: tuple[SettingClaim, ...]
    entries: tuple[EntryClaim, ...]
    """Best first; entries without numbers last, by name."""
    sentences: Mapping[str, tuple[float, ...]]
    """Numbers that the sentences of the conclusion must contain: `found`, `sure`, `lasts`."""

    @property
    def panel(self) -> tuple[str, Split]:
        """Model and split."""
        return self.model, self.split


@dataclass(frozen=True)
class BoardLineClaim:
    """A method's line in `leaderboard show`."""

    model: str
    split: Split
    method: str
    seeds: tuple[int, ...]
    kept: float | None
    forgotten: float | None
    epoch: int | None
    learning_rate: float | None


@dataclass(frozen=True)
class Claims:
    """All claims about one folder."""

    columns: tuple[str, ...]
    """Columns of `results.csv` that hold metrics, in any order."""
    numbers: Mapping[NumberKey, float | None]
    """Every number of `results.csv` (variant `""`) and `attacks.csv`."""
    panels: tuple[PanelClaim, ...]
    boards: Mapping[str, tuple[BoardLineClaim, ...]]
    """Lines of the leaderboard that is exported from this folder alone, by profile."""
    tracked: Mapping[str, Mapping[tuple[str, int], float]]
    """By record: metrics that MLflow has, by name and step. Only the metrics of models
    (`forget/rouge`, `under.relearning.13/rouge_forget`, `best/model_utility`), not those of
    training or of the machine."""

    @classmethod
    def of(cls, folder: Path) -> Claims:
        """Compute all claims about a sweep's folder."""
        rows = Rows(read_folder(folder))
        numbers: dict[NumberKey, float | None] = {}
        for row in rows.all:
            for column, value in row.values.items():
                numbers[row.record.id, row.epoch, row.variant, column] = value
        return cls(rows.columns, numbers, (), {}, {})
