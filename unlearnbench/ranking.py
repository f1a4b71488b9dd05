"""What a table says about methods: seeds taken together, the start, the best settings.

Pure; the rule behind every «best» is stated here and nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from unlearnbench.intervals import Interval, bootstrap
from unlearnbench.table import METRICS, Row

UTILITY_SHARE = 0.8
"""What a setting must keep of the fine-tuned model's utility to be anyone's best."""


Merit = tuple[float, float, int]
"""(log10 Forget Quality, Model Utility, − epoch): the order in which settings are the better."""


@dataclass(frozen=True, eq=False)
class Setting:
    """One setting after one epoch, averaged over its seeds."""

    model: str
    forget_fraction: float
    method: str
    family: str
    learning_rate: float | None
    epoch: int
    rows: tuple[Row, ...]
    """One per seed."""
    metrics: Mapping[str, float | None]
    """Means; None where any seed has no number, so that a collapsed seed is not averaged away."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple[str, float, str, float | None, int]:
        """What tells it from every other setting of a table."""
        return self.model, self.forget_fraction, self.method, self.learning_rate, self.epoch

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Smallest and largest value over the seeds, where there are several."""
        values = [v for r in self.rows if (v := r.metrics[metric]) is not None]
        return (min(values), max(values)) if len(values) > 1 else None

    def interval(self, metric: str) -> Interval | None:
        """The mean's bootstrap interval over seeds; None for one seed, or one without a number."""
        values = [r.metrics[metric] for r in self.rows]
        known = [v for v in values if v is not None]
        return bootstrap(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class Best:
    """A method's best setting on one model and fraction; None where none keeps its utility."""

    model: str
    forget_fraction: float
    method: str
    family: str
    setting: Setting | None


def average_seeds(rows: Iterable[Row]) -> tuple[Setting, ...]:
    """Rows of runs that differ only in their seed, taken together; in the table's order."""
    runs = [r for r in rows if r.kind == "run"]
    groups = groupby(
        sorted(runs, key=lambda r: (*r.setting, r.epoch, r.seed, r.run_id)),
        key=lambda r: (*r.setting, r.epoch),
    )
    settings: list[Setting] = []
    for _, group in groups:
        members = tuple(group)
        first = members[0]
        metrics = {name: _mean([r.metrics[name] for r in members]) for name in METRICS}
        settings.append(
            Setting(
                model=first.model,
                forget_fraction=first.forget_fraction,
                method=first.method,
                family=first.family,
                learning_rate=first.learning_rate,
                epoch=first.epoch,
                rows=members,
                metrics=metrics,
            )
        )
    return tuple(settings)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known and len(known) == len(values) else None


def start_utility(rows: Iterable[Row], model: str, forget_fraction: float) -> float | None:
    """Model Utility where runs start: the fine-tuned model's, else what a run saw at epoch 0."""
    return at_start(rows, model, forget_fraction, "model_utility")


def start_corner(
    rows: Iterable[Row], model: str, forget_fraction: float
) -> tuple[float, float] | None:
    """Where a panel's hypervolume is measured from: (0, log10 Forget Quality where runs start).

    What lies above has some utility and has forgotten something; None where nobody evaluated it.
    """
    quality = at_start(rows, model, forget_fraction, "log10_forget_quality")
    return None if quality is None else (0.0, quality)


def at_start(rows: Iterable[Row], model: str, forget_fraction: float, metric: str) -> float | None:
    """A metric where runs start: the fine-tuned model's, else what a run saw at epoch 0."""
    here = [r for r in rows if (r.model, r.forget_fraction) == (model, forget_fraction)]
    starts = [r for r in here if r.kind == "fine-tuned"] or [
        r for r in here if r.kind == "run" and r.epoch == 0
    ]
    return next((v for r in starts if (v := r.metrics[metric]) is not None), None)


def best_per_method(rows: Sequence[Row], utility_share: float = UTILITY_SHARE) -> tuple[Best, ...]:
    """Per model, fraction and method: the highest log10 Forget Quality that keeps its utility.

    Only settings count, averaged over seeds, whose Model Utility is at least `utility_share` of
    the fine-tuned model's: Forget Quality by itself is highest for some models that say nothing
    any more. Ties as in `best_of`.
    """
    groups: dict[tuple[str, float, str], list[Setting]] = defaultdict(list)
    for setting in average_seeds(rows):
        groups[setting.model, setting.forget_fraction, setting.family].append(setting)
    best: list[Best] = []
    for (model, fraction, family), settings in groups.items():
        start = start_utility(rows, model, fraction)
        chosen = None if start is None else best_of(settings, utility_share * start)
        label = family if chosen is None else chosen.method
        best.append(Best(model, fraction, label, family, chosen))
    return tuple(best)


def best_of(settings: Sequence[Setting], utility: float) -> Setting | None:
    """The highest log10 Forget Quality of at least this Model Utility, after some training.

    Ties go to the higher utility, then to the earlier epoch.
    """
    merits = [
        (merit, index)
        for index, setting in enumerate(settings)
        if (merit := merit_of(setting)) is not None and merit[1] >= utility
    ]
    return settings[max(merits)[-1]] if merits else None


def merit_of(setting: Setting) -> Merit | None:
    """What the best setting has most of; None before training, and without a number."""
    quality = setting.metrics["log10_forget_quality"]
    utility = setting.metrics["model_utility"]
    if setting.epoch == 0 or quality is None or utility is None:
        return None
    return quality, utility, -setting.epoch
