"""Best settings of methods: averages over seeds, the start model, and the rule of choice.

Pure. The rule behind every «best» is stated in `best_per_method` and nowhere else.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from unlearnbench.api.benchmark import (
    Headline,
    HeadlineMetric,
    SplitKey,
    split_order,
    split_percent,
)
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import Interval, is_above, t_interval

UTILITY_SHARE = 0.8
"""Share of the fine-tuned model's utility that a setting must keep to be a method's best."""
COLLAPSE_SHARE = 0.5
"""Below this share of the fine-tuned model's utility a model counts as collapsed."""

Panel = tuple[str, SplitKey]
"""A model and a split."""
Merit = tuple[float, float, int]
"""(forgotten, kept, − epoch): the larger, the better the setting. The first is the headline's
number as `HeadlineMetric.oriented`, the second its number."""


def panel_label(model: str, split: SplitKey) -> str:
    """`tiny, forget 10 %`."""
    return f"{model}, {split_percent(split)}"


@dataclass(frozen=True)
class OnPanel:
    """Model and split that a value belongs to."""

    model: str
    forget_fraction: SplitKey

    @property
    def panel(self) -> Panel:
        """Model and split."""
        return self.model, self.forget_fraction


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
class Setting(OnPanel):
    """One setting after one epoch, averaged over its seeds."""

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

    def by_seed(self, metric: str) -> dict[int, float]:
        """The numbers of the seeds that have one."""
        return {r.seed: v for r in self.rows if (v := r.metrics[metric]) is not None}

    def interval(self, metric: str) -> Interval | None:
        """The mean's t interval over seeds; None for one seed, or if one has no number."""
        numbers = [v for r in self.rows if (v := r.metrics[metric]) is not None]
        return t_interval(numbers) if len(numbers) == len(self.rows) else None


@dataclass(frozen=True)
class Best(OnPanel):
    """A method's best setting on one model and split; None if no setting keeps the utility."""

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
            self._means[name] = mean_of([row.metrics[name] for row in self._rows])
        return self._means[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows[0].metrics)

    def __len__(self) -> int:
        return len(self._rows[0].metrics)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if one value is missing, or there is none."""
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
        groups[(*setting.panel, setting.family)].append(setting)
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


def best_first(setting: Setting | None, family: str) -> tuple[float, float, int, str]:
    """Sort key of methods in every view: the criterion of `best_of`, then the name."""
    merit = None if setting is None else merit_of(setting)
    forgotten, kept, minus_epoch = merit or (-math.inf, 0.0, 0)
    return -forgotten, -kept, -minus_epoch, family


def shared_places(settings: Sequence[Setting]) -> tuple[int, ...]:
    """Places of settings that stand best first, by what they have forgotten.

    A setting has a place of its own if the first one of the place before is better beyond chance
    (`is_above`); otherwise it shares that place.
    """
    places, first = list[int](), dict[int, float]()
    for number, one in enumerate(settings, start=1):
        metric = one.headline.forgotten
        own = {seed: metric.oriented(v) for seed, v in one.by_seed(metric.column).items()}
        if number == 1 or is_above(first, own):
            places.append(number)
            first = own
        else:
            places.append(places[-1])
    return tuple(places)


@dataclass(frozen=True)
class Start(OnPanel):
    """Start model of the runs of one model and split: the fine-tuned model."""

    utility: float | None
    """What it keeps, by the headline; None if it was not evaluated."""
    quality: float | None
    """What it has forgotten, by the headline; None likewise, and where that needs a retain model
    and there is none."""
    headline: Headline
    """Of the benchmark."""

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(*self.panel)

    @property
    def fault(self) -> str:
        """Reason why runs from this model show nothing about methods; empty if there is none.

        A model that knows nothing has no utility to keep, so every setting keeps it. A model that
        the test does not distinguish from the retain model passes it without any unlearning.
        """
        least, test = self.headline.least_kept, self.headline.forgotten.test
        if self.utility is not None and least is not None and self.utility < least:
            return (
                f"the start model knows nothing: its {self.headline.kept.plain_label} is "
                f"{self.utility:.2f}, below {least:g}, so that there is nothing to keep "
                "and nothing to forget. Prepare it with more epochs or at another learning "
                "rate (the model's preparation), or name one that has learned the data (fine_tuned)"
            )
        if self.quality is not None and test and self.quality > math.log10(test.level):
            return (
                f"the start model has nothing left to forget: before any unlearning its "
                f"{test.label} is p = {p_value(self.quality)}, above {test.level:g}, as of a model "
                "that never saw the forget set. Train it longer on the data, or evaluate more "
                "forget questions"
            )
        return ""

    def unmoved(self, quality: float | None) -> bool:
        """True if a setting with this number has forgotten no more than the start model."""
        if quality is None or self.quality is None:
            return False
        oriented = self.headline.forgotten.oriented
        return oriented(quality) <= oriented(self.quality)


def start_of(rows: Iterable[TableRow], model: str, forget_fraction: SplitKey) -> Start:
    """The start of one model and split."""
    here = on_panel(rows, (model, forget_fraction))
    headline = headline_of_rows(here)
    utility, quality = (
        at_start(here, model, forget_fraction, one.column)
        for one in (headline.kept, headline.forgotten)
    )
    return Start(model, forget_fraction, utility, quality, headline)


def rows_with_valid_start(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """The rows of panels whose start model has no fault."""
    places = {(row.model, row.forget_fraction) for row in rows}
    faulty = {place for place in places if start_of(rows, *place).fault}
    return tuple(row for row in rows if (row.model, row.forget_fraction) not in faulty)


def winner(best: Iterable[Best]) -> Best | None:
    """The best of several methods' best settings; None if no method has one."""
    merits = [(merit_of(one.setting) or (), one) for one in best if one.setting is not None]
    return max(merits, key=lambda pair: pair[0], default=((), None))[1]


def quality_text(metric: HeadlineMetric, value: float) -> str:
    """Number of what is forgotten, in a sentence: `p = 0.82`, or `0.123` where no test is behind.

    value  by the headline, so that of a test it is the logarithm of p
    """
    return f"p = {p_value(value)}" if metric.test else f"{value:.{metric.digits}f}"


def p_value(log10: float) -> str:
    """A p-value from its logarithm: `0.82`, `1.3e-05`; a power of ten alone below 1e-300."""
    if log10 > -300:
        return f"{10**log10:.2g}"
    return f"1e{math.floor(log10)}"
