"""Best settings of methods: averages over seeds, the start model, and the rule of choice.

Pure. The rule behind every «best» is stated in `best_per_method` and nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from unlearnbench.api.benchmark import Headline, SplitKey, split_order, split_percent
from unlearnbench.evaluation.headlines import default_headline
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import Interval, t_interval

UTILITY_SHARE = 0.8
"""Share of the fine-tuned model's utility that a setting must keep to be a method's best."""

Panel = tuple[str, SplitKey]
"""A model and a split."""
Merit = tuple[float, float, int]
"""(forgotten, kept, − epoch): the larger, the better the setting. The first is the headline's
number as `HeadlineMetric.oriented`, the second its number."""


def panel_label(model: str, split: SplitKey) -> str:
    """`tiny, forget 10 %`."""
    return f"{model}, {split_percent(split)}"


def split_kind(panels: Iterable[Panel]) -> str:
    """`forget fraction` or `split`: what panels of one model differ by."""
    return "split" if any(isinstance(key, str) for _, key in panels) else "forget fraction"


def panel_order(panel: Panel) -> tuple[str, tuple[bool, SplitKey]]:
    """Sort key of panels."""
    return panel[0], split_order(panel[1])


def headline_of_rows(rows: Iterable[TableRow]) -> Headline:
    """The headline that all rows of a table share."""
    return next((row.headline for row in rows), None) or default_headline()


def on_panel(rows: Iterable[TableRow], panel: Panel) -> tuple[TableRow, ...]:
    """The rows of one model and split."""
    return tuple(row for row in rows if (row.model, row.forget_fraction) == panel)


@dataclass(frozen=True, eq=False)
class Setting:
    """One setting after one epoch, averaged over its seeds."""

    model: str
    forget_fraction: SplitKey
    method: str
    family: str
    learning_rate: float | None
    epoch: int
    rows: tuple[TableRow, ...]
    """One per seed."""
    metrics: Mapping[str, float | None]
    """Means; None if any seed has no number: a collapsed seed must not disappear in a mean."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def headline(self) -> Headline:
        """Headline of the benchmark."""
        return headline_of_rows(self.rows)

    @property
    def kept(self) -> float | None:
        """Mean of what is kept, by the headline."""
        return self.metrics.get(self.headline.kept.column)

    @property
    def forgotten(self) -> float | None:
        """Mean of what is forgotten, by the headline."""
        return self.metrics.get(self.headline.forgotten.column)

    @property
    def key(self) -> tuple[str, SplitKey, str, float | None, int]:
        """Identity of the setting within a table."""
        return self.model, self.forget_fraction, self.method, self.learning_rate, self.epoch

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Smallest and largest value over the seeds; None for fewer than two numbers."""
        values = [v for r in self.rows if (v := r.metrics[metric]) is not None]
        return (min(values), max(values)) if len(values) > 1 else None

    def interval(self, metric: str) -> Interval | None:
        """The mean's t interval over seeds; None for one seed, or if one has no number."""
        numbers = [v for r in self.rows if (v := r.metrics[metric]) is not None]
        return t_interval(numbers) if len(numbers) == len(self.rows) else None


@dataclass(frozen=True)
class Best:
    """A method's best setting on one model and split; None if no setting keeps the utility."""

    model: str
    forget_fraction: SplitKey
    method: str
    family: str
    setting: Setting | None


def average_seeds(rows: Iterable[TableRow]) -> tuple[Setting, ...]:
    """Average the runs that differ only in their seed; in the table's order."""
    runs = [r for r in rows if r.kind == "run"]
    groups = groupby(
        sorted(runs, key=lambda r: (*r.setting, r.epoch, r.seed, r.run_id)),
        key=lambda r: (*r.setting, r.epoch),
    )
    settings: list[Setting] = []
    for _, group in groups:
        members = tuple(group)
        first = members[0]
        settings.append(
            Setting(
                model=first.model,
                forget_fraction=first.forget_fraction,
                method=first.method,
                family=first.family,
                learning_rate=first.learning_rate,
                epoch=first.epoch,
                rows=members,
                metrics=first.metrics if len(members) == 1 else _Means(members),
            )
        )
    return tuple(settings)


class _Means(Mapping[str, float | None]):
    """Means of rows by column, each computed when it is read first."""

    def __init__(self, rows: Sequence[TableRow]) -> None:
        self._rows = rows
        self._means: dict[str, float | None] = {}

    def __getitem__(self, name: str) -> float | None:
        if name not in self._means:
            self._means[name] = _mean([row.metrics[name] for row in self._rows])
        return self._means[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows[0].metrics)

    def __len__(self) -> int:
        return len(self._rows[0].metrics)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [v for v in values if v is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def start_utility(rows: Iterable[TableRow], model: str, forget_fraction: SplitKey) -> float | None:
    """Number of what the start model keeps, by the headline; see `at_start`."""
    here = on_panel(rows, (model, forget_fraction))
    return at_start(here, model, forget_fraction, headline_of_rows(here).kept.column)


def start_corner(
    rows: Iterable[TableRow], model: str, forget_fraction: SplitKey
) -> tuple[float, float] | None:
    """Reference point of a panel's hypervolume: (0, the start model's number of what is forgotten).

    The latter as `HeadlineMetric.oriented`. A point above it keeps something and has forgotten
    something. None if the start model was not evaluated.
    """
    here = on_panel(rows, (model, forget_fraction))
    forgotten = headline_of_rows(here).forgotten
    found = at_start(here, model, forget_fraction, forgotten.column)
    return None if found is None else (0.0, forgotten.oriented(found))


def at_start(
    rows: Iterable[TableRow], model: str, forget_fraction: SplitKey, metric: str
) -> float | None:
    """A metric of the start model: the fine-tuned model's, else that of a run's epoch 0."""
    here = on_panel(rows, (model, forget_fraction))
    starts = [r for r in here if r.kind == "fine-tuned"] or [
        r for r in here if r.kind == "run" and r.epoch == 0
    ]
    return next((v for r in starts if (v := r.metrics.get(metric)) is not None), None)


def best_per_method(
    rows: Sequence[TableRow], utility_share: float = UTILITY_SHARE
) -> tuple[Best, ...]:
    """Per model, split and method: the setting that forgets most and keeps its utility.

    By the headline: of TOFU, log10 Forget Quality and Model Utility. Settings are averaged over
    seeds. Only those count that keep at least `utility_share` of what the fine-tuned model has:
    without that condition, models that no longer produce text can be the best. Ties as in
    `best_of`.
    """
    groups: dict[tuple[str, SplitKey, str], list[Setting]] = defaultdict(list)
    for setting in average_seeds(rows):
        groups[setting.model, setting.forget_fraction, setting.family].append(setting)
    starts = {panel: start_utility(rows, *panel) for panel in {key[:2] for key in groups}}
    best: list[Best] = []
    for (model, fraction, family), settings in groups.items():
        start = starts[model, fraction]
        chosen = None if start is None else best_of(settings, utility_share * start)
        label = family if chosen is None else chosen.method
        best.append(Best(model, fraction, label, family, chosen))
    return tuple(best)


def best_of(settings: Sequence[Setting], utility: float) -> Setting | None:
    """The setting after epoch 0 that forgets most and keeps at least `utility`, by the headline.

    Ties go to the higher utility, then to the earlier epoch.
    """
    merits = [
        (merit, index)
        for index, setting in enumerate(settings)
        if (merit := merit_of(setting)) is not None and merit[1] >= utility
    ]
    return settings[max(merits)[-1]] if merits else None


def merit_of(setting: Setting) -> Merit | None:
    """Sort key of settings, largest for the best; None at epoch 0 and without a number."""
    forgotten, kept = setting.forgotten, setting.kept
    if setting.epoch == 0 or forgotten is None or kept is None:
        return None
    return setting.headline.forgotten.oriented(forgotten), kept, -setting.epoch
