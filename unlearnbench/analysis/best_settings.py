"""Best settings of methods: averages over seeds, the start model, and the rule of choice.

Pure. The rule behind every «best» is stated in `Panel.best` and nowhere else.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from statistics import fmean

from unlearnbench.api.benchmark import (
    Headline,
    SplitKey,
    split_order,
    split_percent,
)
from unlearnbench.config.profiles import UNLEARNBENCH
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.evaluation.word_check import MOST_ANSWERS
from unlearnbench.results.table import Numbers, TableRow
from unlearnbench.stats.t_interval import Interval, is_above, t_interval

UTILITY_SHARE = 0.8
"""Share of the fine-tuned model's utility that a setting must keep to be a method's best."""
COLLAPSE_SHARE = 0.5
"""Below this share of the fine-tuned model's utility a model counts as collapsed."""

PanelKey = tuple[str, SplitKey]
"""Model and split."""
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
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(*self.panel)

    @property
    def panel(self) -> PanelKey:
        """Model and split."""
        return self.model, self.forget_fraction


def panel_order(panel: PanelKey) -> tuple[str, tuple[bool, SplitKey]]:
    """Sort key of panels."""
    return panel[0], split_order(panel[1])


def headline_of_rows(rows: Iterable[TableRow]) -> Headline:
    """The headline that all rows of a table share."""
    return next((row.headline for row in rows), None) or default_headline()


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
    def key(self) -> tuple[str, SplitKey, str, float | None, str, int]:
        """Identity of the setting within a table."""
        setting_id = self.rows[0].setting_id if self.rows else ""
        return (*self.panel, self.method, self.learning_rate, setting_id, self.epoch)

    @property
    def trajectory(self) -> tuple[str, SplitKey, str, float | None, str]:
        """What all epochs of the setting share. Labels of several tables may be equal."""
        return self.key[:-1]

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
                metrics=first.metrics if len(members) == 1 else _means(members),
            )
        )
    return tuple(settings)


def _means(rows: Sequence[TableRow]) -> Numbers:
    return Numbers({name: mean_of([row.metrics[name] for row in rows]) for name in rows[0].metrics})


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if one value is missing, or there is none."""
    numbers = [v for v in values if v is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


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
    for number, setting in enumerate(settings, start=1):
        metric = setting.headline.forgotten
        part = {seed: metric.oriented(v) for seed, v in setting.by_seed(metric.column).items()}
        if number == 1 or is_above(first, part):
            places.append(number)
            first = part
        else:
            places.append(places[-1])
    return tuple(places)


@dataclass(frozen=True)
class Start(OnPanel):
    """Start model of the runs of one model and split: the fine-tuned model."""

    utility: float | None
    """Headline of what is kept; None if the setting was not evaluated."""
    quality: float | None
    """Headline of what is forgotten; None likewise, and where that needs a retain model
    and there is none."""
    headline: Headline
    """Headline of the benchmark."""
    uncounted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of true answers by set whose words the profile does not count."""

    @property
    def corner(self) -> tuple[float, float] | None:
        """Reference point of hypervolumes: (0, `quality` as `HeadlineMetric.oriented`).

        A point above it keeps something and has forgotten something.
        """
        return (
            None if self.quality is None else (0.0, self.headline.forgotten.oriented(self.quality))
        )

    @property
    def fault(self) -> str:
        """Reason why runs from this model show nothing about methods; empty if there is none.

        A model that knows nothing has no utility to keep, so every setting keeps it. A model that
        the test does not distinguish from the retain model passes it without any unlearning.
        """
        least, test = self.headline.least_kept or 0.0, self.headline.forgotten.test
        if self.utility is not None and not 0 < self.utility >= least:
            if max(self.uncounted.values(), default=0.0) >= MOST_ANSWERS:
                sets = ", ".join(self.uncounted)
                return (
                    "the evaluation profile does not count the answers' words: "
                    f"{self.headline.kept.plain_label} is {self.utility:.2f} because the profile "
                    f"counts only words of a-z and 0-9, and the true answers of {sets} are mostly "
                    f"in other scripts. Set evaluation.profile to {UNLEARNBENCH.name} and run again"
                )
            return (
                f"the start model knows nothing: its {self.headline.kept.plain_label} is "
                f"{self.utility:.2f}{f', below {least:g}' * bool(least)}, so that there is nothing "
                "to keep and nothing to forget. Prepare it with more epochs or at another learning "
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


@dataclass(frozen=True, eq=False)
class Panel(OnPanel):
    """The rows of one model and split, and what follows from them, each computed once."""

    rows: tuple[TableRow, ...]

    @cached_property
    def headline(self) -> Headline:
        """The two numbers that methods are ranked by."""
        return headline_of_rows(self.rows)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting after each epoch, averaged over seeds."""
        return average_seeds(self.rows)

    @cached_property
    def start(self) -> Start:
        """The start model of the runs."""
        kept, forgotten = self.headline.kept.column, self.headline.forgotten.column
        numbers = self.at_start(kept), self.at_start(forgotten)
        row = self.start_row(kept)
        uncounted = {} if row is None else row.uncounted
        return Start(*self.panel, *numbers, self.headline, uncounted)

    @cached_property
    def questions(self) -> int | None:
        """Forget questions behind the headline's test; None without one, and where they differ."""
        test = self.headline.forgotten.test
        values = (row.metrics.get(test.questions) for row in self.rows) if test else ()
        counts = {int(n) for n in values if n is not None}
        return counts.pop() if len(counts) == 1 else None

    @property
    def least_kept(self) -> float | None:
        """The utility that a method's best setting must keep; None without a start model."""
        return None if self.start.utility is None else UTILITY_SHARE * self.start.utility

    @cached_property
    def best(self) -> tuple[Best, ...]:
        """Each method's best setting, the best method first.

        It is the one that forgets most, by the headline (of TOFU, log10 Forget Quality and Model
        Utility), among those that keep at least `UTILITY_SHARE` of what the start model has:
        without that condition, models that no longer produce text can be the best. Ties as in
        `best_of`. No setting is the best from a start model with a fault.
        """
        groups: dict[str, list[Setting]] = defaultdict(list)
        for setting in self.settings:
            groups[setting.family].append(setting)
        bests: list[Best] = []
        least = None if self.start.fault else self.least_kept
        for family, settings in groups.items():
            best = None if least is None else best_of(settings, least)
            label = family if best is None else best.method
            bests.append(Best(*self.panel, label, family, best))
        return tuple(sorted(bests, key=lambda best: best_first(best.setting, best.family)))

    def row(self, kind: str) -> TableRow | None:
        """The first row of the start model (`fine-tuned`) or the retain model."""
        return next((row for row in self.rows if row.kind == kind), None)

    def start_row(self, column: str) -> TableRow | None:
        """The first row of the start model with a number: the fine-tuned model's, else that of a
        run's epoch 0."""
        starts = [row for row in self.rows if row.kind == "fine-tuned"] or [
            row for row in self.rows if row.kind == "run" and row.epoch == 0
        ]
        return next((row for row in starts if row.metrics.get(column) is not None), None)

    def at_start(self, column: str) -> float | None:
        """A number of the start model, see `start_row`."""
        row = self.start_row(column)
        return None if row is None else row.metrics.get(column)


def panels(rows: Iterable[TableRow]) -> tuple[Panel, ...]:
    """The panels of a table, by model and split."""
    by_panel: dict[PanelKey, list[TableRow]] = defaultdict(list)
    for row in rows:
        by_panel[row.panel].append(row)
    return tuple(Panel(*key, tuple(by_panel[key])) for key in sorted(by_panel, key=panel_order))


def best_per_method(rows: Iterable[TableRow]) -> tuple[Best, ...]:
    """`Panel.best` of all panels."""
    return tuple(best for panel in panels(rows) for best in panel.best)


def p_value(log10: float) -> str:
    """A p-value from its logarithm: `0.82`, `1.3e-05`; a power of ten alone below 1e-300."""
    if log10 > -300:
        return f"{10**log10:.2g}"
    return f"1e{math.floor(log10)}"
